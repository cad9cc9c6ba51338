"""Whether any bytes make the decoders of `flatout serve` do other than answer or refuse.

    python campaigns/serve_fuzz.py [--minutes 5] [--folder FOLDER]

atheris (`pip install atheris`, Linux) changes bodies so that they reach more of the code: JSON,
multipart, files and texts of `POST /predict`, the v2 protocol with binary tensors, compressed
bodies. Each must become inputs that fit the model, or a FlatoutError. The campaign ends at the
first that does not: its bytes are in the folder. Exits with 1 then, and if a body takes longer than
5 s or 2 GiB.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import measurement, read_machine, write_result

from flatout.errors import FlatoutError
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.serve.batching import input_bytes
from flatout.serve.inputs import CallOptions, predict_requests
from flatout.serve.limits import ServeLimits, decompressed
from flatout.serve.open_inference import v2_call

RESULTS = Path(__file__).with_name("results")
LIMITS = ServeLimits(
    body_bytes=1 << 20, tensor_bytes=1 << 22, num_inputs=100, image_pixels=10_000,
    file_bytes=1 << 22,
)  # fmt: skip
NUMBERS = ServedModel(
    name="m", version="1", format="run", max_samples=4, accepts=("tensors", "file"),
    inputs=(TensorSpec(name="x", dtype="float32", shape=(None, None)),),
    outputs=(TensorSpec(name="y", dtype="float32", shape=(None, 3)),),
)  # fmt: skip
ALL = msgspec.structs.replace(
    NUMBERS, accepts=("tensors", "file", "text", "value"), has_decode=True
)
# Of a message: names, shapes and lengths.
OVERHEAD_BYTES = 1000
# The first byte of what atheris draws chooses how the rest arrives.
KINDS = (
    "application/json", "multipart/form-data; boundary=B", "application/octet-stream", "text/plain",
)  # fmt: skip
_OPTIONS = ("-timeout=5", "-rss_limit_mb=2048", "-print_final_stats=1", "-max_len=4096")


def decode(drawn: bytes) -> None:
    """Decodes a body; raises what is neither an answer nor a refusal."""
    way, body = (drawn[0] if drawn else 0), drawn[1:]
    model = ALL if way & 64 else NUMBERS
    try:
        if way & 128:
            body = decompressed(body, "gzip" if way & 1 else "deflate", LIMITS)
        if way % 8 < len(KINDS):
            requests = predict_requests(body, KINDS[way % 8], CallOptions(), model, LIMITS)
        else:
            length, _, rest = body.partition(b"\n")
            header = str(length, "latin-1") if way % 8 < 6 else None
            requests = v2_call(rest, header, model, LIMITS).requests
    except FlatoutError as error:
        if not (error.problem and error.fix):
            raise AssertionError("an error without a fix") from error
        return
    for request in requests:
        message = msgspec.msgpack.encode(request.input)
        if len(message) > input_bytes(request.input) + OVERHEAD_BYTES:
            raise AssertionError("batches are bounded by less than they take")


def seeds() -> dict[str, bytes]:
    """Bodies that are correct, or nearly."""
    import numpy as np
    from PIL import Image

    array, picture = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros((2, 2), np.float32))
    Image.new("L", (3, 3)).save(picture, "PNG")
    x = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [x], "outputs": [{"name": "y"}]}).encode()
    plain = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]}]}
    part = b'--B\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n'
    return {
        "json": b"\0" + b'{"inputs": [[1, 2.5], [3, -4e2]], "top": 2, "timeout_s": 0.5}',
        "value": b"\x40" + b'{"input": {"base64": "aGk=", "a": [null, true, "\\u00e4"]}}',
        "form": b"\1" + part + b"data\r\n--B--\r\n",
        "npy": b"\2" + array.getvalue(),
        "png": b"\2" + picture.getvalue(),
        "gz": b"\2" + gzip.compress(b"data"),
        "text": b"\x43some text",
        "v2": b"\x06\n" + json.dumps(plain).encode(),
        "binary": b"\4%d\n%b" % (len(head), head + bytes(8)),
        "compressed": b"\x81" + gzip.compress(part + b"data\r\n--B--\r\n"),
    }


def fuzz(arguments: list[str]) -> None:
    """Runs libFuzzer, which ends this process."""
    import atheris

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *arguments], decode)
    atheris.Fuzz()


def main() -> int:
    """Fuzzes for some minutes and writes the result; 1 if a body broke a decoder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument(
        "--folder", type=Path, help="keeps bodies that reached new code, and a bad one"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="serve-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in seeds().items():
        decode(body)
        (folder / name).write_bytes(body)
    command = [
        sys.executable, __file__, "--child", str(folder),
        f"-max_total_time={asked.minutes * 60:.0f}", f"-artifact_prefix={folder}/bad-", *_OPTIONS,
    ]  # fmt: skip
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    count = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    if done.returncode or count is None:
        print(done.stderr[-3000:], f"\nbroken: see {folder}")
        return 1
    print(f"{int(count[1]):,} bodies: each was answered or refused")
    found = [measurement("bodies decoded", "bodies", (float(count[1]),), {})]
    print(write_result("serve-fuzz", read_machine(), found, {}, asked.out))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2:])
    sys.exit(main())
