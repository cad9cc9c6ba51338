"""The bench pages of `flatout web`: limits, workloads, comparisons, platforms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bench_results import keep, limits_file, workload_file
from support.web_runs import web_client

from flatout.bench import compare as bench_compare
from flatout.bench.read_files import loaded
from flatout.schema.bench import DeviceState
from flatout.web.texts import LANGUAGES

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
LATER = DeviceState(at="2026-11-25T16:00:00Z", other_cpus=0.0)
BOTH = "file=bench/a&file=bench/b"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


def page(path: str, **more: Any) -> str:
    answer = web_client().get(path, **more)
    assert answer.status_code == 200, answer.text[-500:]
    return answer.text


def document(path: str) -> Any:
    return json.loads(web_client().get(path).text)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("path", ["/bench", "/bench/compare", "/bench/platforms"])
def test_bench_page_without_any_result(path: str, language: str) -> None:
    text = page(path, headers={"accept-language": language})
    assert f'<html lang="{language}">' in text and text.count("<h1>") == 1


def test_bench_shows_limits_as_a_roofline_and_a_table() -> None:
    keep("limits/0123", limits_file())
    text = page("/bench")
    assert '<svg class="roofline"' in text and "matrix product fp32" in text
    assert "50 %" in text and "no GPU" in text
    (limits,) = document("/bench.json")["limits"]
    rows = {row["id"]: row for row in limits["rows"]}
    fp32 = rows["limits/matmul/fp32"]
    assert fp32["interval"]["low"] < fp32["median"] < fp32["interval"]["high"]
    assert rows["limits/pinned"]["median"] is None and rows["limits/pinned"]["unread"] == "no GPU"


def test_bench_shows_the_newest_limits_of_each_device() -> None:
    keep("limits/0", limits_file(began=LATER))
    keep("limits/1", limits_file())
    keep("limits/2", limits_file(settings={"device": "cuda:0"}))
    limits = document("/bench.json")["limits"]
    assert [(one["device"], one["at"]) for one in limits] == [
        ("cpu", LATER.at), ("cuda:0", "2026-11-24T16:00:00Z")
    ]  # fmt: skip


def test_bench_shows_workloads_once() -> None:
    keep("bench/run-mlp", workload_file())
    keep("bench/run-copy", workload_file())
    ways = document("/bench.json")["results"]
    verdicts = [(way["way"], way["verdict"]) for way in ways]
    assert verdicts == [("plain", None), ("flatout", "faster")]
    assert 1.9 < ways[1]["ratio"]["middle"] < 2.1
    assert '<svg class="bar"' in page("/bench")


def test_compare_is_what_the_command_finds() -> None:
    files = (limits_file(), limits_file(1.5))
    keep("bench/a", files[0])
    keep("bench/b", files[1])
    found = document(f"/bench/compare.json?{BOTH}")["comparison"]
    wanted = bench_compare.compare(
        [loaded(file, name, "") for name, file in zip("ab", files, strict=True)]
    )
    assert found["rows"] == json.loads(msgspec.json.encode(wanted.rows))
    text = page(f"/bench/compare?{BOTH}")
    assert "b against a" in text and "faster" in text and "x1.50 [" in text
    assert text.count('<svg class="roofline"') == 2


def test_compare_of_three_files() -> None:
    for name, speed in (("a", 1.0), ("b", 1.5), ("c", 0.5)):
        keep(f"bench/{name}", limits_file(speed))
    text = page(f"/bench/compare?{BOTH}&file=bench/c")
    assert "b against a" in text and "c against a" in text and "slower" in text


def test_compare_when_nothing_is_in_common() -> None:
    keep("bench/a", limits_file())
    keep("bench/b", workload_file())
    assert "no row in common" in page(f"/bench/compare?{BOTH}")


def test_platforms_are_shown_next_to_each_other() -> None:
    keep("bench/a", limits_file())
    keep("bench/b", limits_file(0.5, "WSL2"))
    known = document(f"/bench/platforms.json?{BOTH}")["platforms"]
    assert known["platforms"] == ["Linux", "WSL2"] and known["missing"] == ["Windows"]
    text = page(f"/bench/platforms?{BOTH}")
    assert "WSL2 against Linux" in text and "launch latency" in text


def test_platforms_of_the_same_system() -> None:
    keep("bench/a", limits_file())
    keep("bench/b", limits_file())
    assert "all of the same platform" in page(f"/bench/platforms?{BOTH}")


@pytest.mark.parametrize("id", ["../secret", "bench/../../secret", "/etc/passwd", "bench/gone"])
def test_result_that_is_not_in_the_list_is_not_read(id: str, state: Path) -> None:
    (state.parent / "secret.json").write_bytes(msgspec.json.encode(limits_file()))
    keep("bench/a", limits_file())
    known = document(f"/bench/compare.json?file=bench/a&file={id}")
    assert [one["id"] for one in known["files"]] == ["bench/a"]
    assert "bench-file-not-found" in [one["rule"] for one in known["problems"]]


def test_damaged_result_is_named_and_the_others_are_shown() -> None:
    keep("bench/bad", b"{")
    keep("bench/run-mlp", workload_file())
    text = page("/bench")
    assert "is not a readable bench file" in text and "mlp" in text


def test_texts_of_results_are_escaped() -> None:
    machine = limits_file().machine
    named = msgspec.structs.replace(
        machine, cpu=msgspec.structs.replace(machine.cpu, name=ATTACK)
    )  # fmt: skip
    rows = tuple(msgspec.structs.replace(row, label=ATTACK) for row in limits_file().rows)
    for id in ("limits/0", "bench/a", "bench/b"):
        keep(id, limits_file(machine=named, warnings=(ATTACK,)) if id == "bench/a" else
             msgspec.structs.replace(limits_file(1.5), machine=named, rows=rows))  # fmt: skip
    for path in ("/bench", f"/bench/compare?{BOTH}"):
        text = page(path)
        assert "<script>alert" not in text and "<img" not in text and "&lt;script&gt;" in text


def test_results_beyond_the_newest_hundred_are_counted() -> None:
    for number in range(103):
        keep(f"bench/{number}", workload_file(versions={"torch": str(number)}))
    known = document("/bench.json")
    assert len(known["files"]) == 100 and known["num_left_out"] == 3
