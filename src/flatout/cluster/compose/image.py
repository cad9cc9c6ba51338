"""The image of a cluster as files: one for every role, so that all nodes have the same versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from flatout.cluster.compose.layout import SHARED_FOLDERS
from flatout.cluster.model.cluster import ClusterLayout, Engine

_WRITTEN = "Written by `flatout cluster init`"

# The newest of each at the time of this release; all nodes of a cluster must have the same.
ENGINE_REQUIREMENTS: Mapping[Engine, tuple[str, ...]] = MappingProxyType({
    "ray": ("ray[default]==2.60.0",),
    # bokeh draws the dashboard.
    "dask": ("dask==2026.8.0", "distributed==2026.8.0", "bokeh==3.9.2"),
    "torchrun": (),
})  # fmt: skip

# Pictures and shards, for ingestion and for training from them.
_DATA_REQUIREMENTS = ("pillow==13.0.0", "pyarrow==26.0.1")
# `flatout serve` in the role `inference`.
_SERVE_REQUIREMENTS = (
    "starlette==1.10.0", "uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0",
    "python-multipart==0.0.34", "swagger-ui-bundle==1.1.0",
)  # fmt: skip

_DOCKERFILE = """\
# {written}. Build arguments are set in .env, through compose.yaml.
ARG BASE_IMAGE={base_image}

FROM ${{BASE_IMAGE}} AS base
# torch.compile and Triton call a C compiler at run time. Python is installed if the base image has
# none.
ARG SYSTEM_PACKAGES="gcc g++"
RUN packages="$SYSTEM_PACKAGES"; \\
    python3 -c "import ensurepip" 2>/dev/null || packages="$packages python3 python3-venv"; \\
    if [ -n "$packages" ]; then \\
        apt-get update \\
        && apt-get install --yes --no-install-recommends $packages \\
        && rm -rf /var/lib/apt/lists/*; \\
    fi

# Install-time inputs stay in this stage: wheels, and the address of a package index.
FROM base AS build
ARG PIP_INDEX_URL=""
ARG CA_BUNDLE=""
RUN python3 -m venv /opt/flatout
ENV PATH=/opt/flatout/bin:$PATH
COPY certificates/ /certificates/
COPY wheels/ /wheels/
COPY requirements.txt /requirements.txt
RUN export PIP_CERT="${{CA_BUNDLE:+/certificates/$CA_BUNDLE}}"; \\
    pip install --no-cache-dir --find-links /wheels --requirement /requirements.txt

FROM base
# Files in the shared folders belong to the user with this ID on the machine itself.
ARG RUN_UID=1000
ARG RUN_GID=1000
RUN groupadd --non-unique --gid $RUN_GID trainer \\
    && useradd --non-unique --create-home --uid $RUN_UID --gid $RUN_GID trainer \\
    && mkdir -p {runs} {data} /cache \\
    && chown -R $RUN_UID:$RUN_GID {state} {data} /cache
COPY --from=build /opt/flatout /opt/flatout
# What changes most comes last: a new flatout is one small layer; all others stay cached.
COPY own/ /own/
RUN /opt/flatout/bin/pip install --no-cache-dir --no-index --no-deps /own/*.whl
ENV PATH=/opt/flatout/bin:$PATH \\
    FLATOUT_STATE={state} FLATOUT_DATA={data} FLATOUT_CACHE=/cache \\
    PYTHONUNBUFFERED=1 CUDA_DEVICE_ORDER=PCI_BUS_ID
{gpu}USER trainer
WORKDIR /home/trainer
"""

_GPU = """\
# What NVIDIA's container toolkit provides: the driver's libraries and nvidia-smi.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
"""

_WHEELS = """\
`flatout cluster up` uses the wheels in this folder instead of downloading them.
"""
_CERTIFICATES = """\
A company's CA bundle goes here, as a .pem file; CLUSTER_CA_BUNDLE in .env names it.
"""


def image_files(layout: ClusterLayout) -> dict[str, str]:
    """Dockerfile and what it copies, but for flatout's own wheel, by name."""
    runs = PurePosixPath(SHARED_FOLDERS["CLUSTER_RUNS"])
    return {
        "Dockerfile": _DOCKERFILE.format(
            written=_WRITTEN,
            base_image=layout.base_image,
            runs=runs,
            # Runs are where flatout looks for them by itself: in `runs` below its state.
            state=runs.parent,
            data=SHARED_FOLDERS["CLUSTER_DATA"],
            gpu=_GPU if layout.gpus else "",
        ),
        "requirements.txt": requirements_text(layout),
        "wheels/README": _WHEELS,
        "certificates/README": _CERTIFICATES,
    }


def requirements_text(layout: ClusterLayout) -> str:
    """A file for pip: the engine and the framework, each of one version."""
    lines = [f"# {_WRITTEN}: {layout.engine}"]
    if layout.index:
        lines.append(f"--extra-index-url {layout.index}")
    required = (
        *layout.requirements, *ENGINE_REQUIREMENTS[layout.engine], *_DATA_REQUIREMENTS,
        *_SERVE_REQUIREMENTS,
    )  # fmt: skip
    return "\n".join([*lines, *dict.fromkeys(required)]) + "\n"
