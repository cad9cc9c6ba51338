"""What a framework was built for, from texts alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.framework import Framework
from flatout.system.probes.frameworks import parse_build_text, parse_report, parse_requirements


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "cu130"),
        ("cuda = '12.8'", "cu128"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "cpu"),
        ("cuda = None\nhip = '6.4.43482'", "rocm6.4"),
        ("cuda_version  = '12.6'", "cu126"),
        ("cuda_version  = 'False'", "cpu"),
        ("OrderedDict([('cuda_version', '12.5.1'), ('is_cuda_build', True)])", "cu125"),
        ("OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])", "cpu"),
        ("debug = False", None),
        ("", None),
    ],
)
def test_parse_build_text_when_written_so(text: str, build: str | None) -> None:
    assert parse_build_text(text) == build


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"', "cu128"),
        ("nvidia-cuda-runtime==13.0.48", "cu130"),
        ("cuda-toolkit[cublas,cudart]==13.0.2", "cu130"),
        ('nvidia-cuda-runtime-cu12==12.5.82; extra == "and-cuda"', None),
        ("nvidia-cudnn-cu13==9.19.0.56", None),
    ],
)
def test_parse_requirements_when_written_so(line: str, build: str | None) -> None:
    assert parse_requirements([line]) == build


@pytest.mark.parametrize(
    ("version", "build"),
    [("2.13.0+cpu", "cpu"), ("2.13.0+cu130", "cu130"), ("2.9+rocm6.4", "rocm6.4")],
)
def test_parse_report_when_the_version_tells_the_build(version: str, build: str) -> None:
    report = json.dumps({"packages": {"torch": {"version": version}}})
    assert parse_report(report) == ((Framework(name="torch", version=version, build=build),), {})


def test_parse_report_when_nothing_tells_the_build() -> None:
    report = json.dumps({"packages": {"torch": {"version": "2.13.0a0+git1"}}})
    (torch,), unread = parse_report(report)
    assert torch.build is None
    assert unread.keys() == {"frameworks.torch.build"}


def test_parse_report_when_the_environment_prints_before_it() -> None:
    report = '{"packages": {"torch": {"version": "2.9.1+cpu"}}}'
    (torch,), _ = parse_report(f"hello from site\n{report}\n")
    assert torch.version == "2.9.1+cpu"


@given(st.text())
def test_parse_report_when_it_is_garbage(text: str) -> None:
    frameworks, unread = parse_report(text)
    assert frameworks == ()
    assert "frameworks" in unread
