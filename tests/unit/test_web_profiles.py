"""The profiles page of `flatout web`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.step_profiles import line, report
from support.web_runs import web_client

from flatout.schema.step_profile import Advice, Held, MemoryUse, OperatorTime
from flatout.schema.tuning import Interval
from flatout.system.store.profile_reports import keep_report, kept_reports
from flatout.web.texts import LANGUAGES

ATTACK = "<script>alert(1)</script>"
ADVICE = Advice(
    id="unfused-optimizer", problem="the optimizer is not fused.", because="it takes 10 %",
    fix="--use optimizer_implementation=fused", basis="measured parts",
    speedup=Interval(middle=1.1, low=1.05, high=1.15),
)  # fmt: skip


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


def page(path: str = "/profiles", **more: Any) -> str:
    answer = web_client().get(path, **more)
    assert answer.status_code == 200, answer.text[-500:]
    return answer.text


@pytest.mark.parametrize("language", LANGUAGES)
def test_profiles_when_nothing_was_profiled(language: str) -> None:
    assert "flatout profile digits" in page(headers={"accept-language": language})


@pytest.mark.parametrize("language", LANGUAGES)
def test_profile_shows_advice_split_lines_and_memory(language: str) -> None:
    operator = OperatorTime(name="aten::addmm", calls=4, self_s=4e-3, total_s=5e-3, shapes="64x20")
    kernel = OperatorTime(name="gemm_kernel", calls=4, self_s=0.0, total_s=0.0, device_s=2e-3)
    memory = MemoryUse(peak_bytes=4 << 20, at_peak=(Held(name="weights", num_bytes=3 << 20),))
    keep_report(report(
        lines=(line("loss.backward()", 5),), operators=(operator,), memory=memory, advice=(ADVICE,),
        kernels=(kernel,),
    ))  # fmt: skip
    text = page(headers={"accept-language": language})
    for shown in ("the optimizer is not fused.", "x1.10 [1.05, 1.15]", "train.py:1", "aten::addmm",
                  "gemm_kernel", "80.0 %", "weights", "4.0 MiB", "micro_batch_size=64",
                  "<code>flatout explain unfused-optimizer</code>"):  # fmt: skip
        assert shown in text, shown
    known = json.loads(web_client().get("/profiles.json").text)["report"]["value"]
    assert known["step_s"] == pytest.approx(0.01)
    assert [one["part"] for one in known["split"]] == ["matrix", "host", "optimizer"]


def test_last_profile_of_each_subject_is_kept() -> None:
    keep_report(report(subject="digits", torch="2.11.0"))
    keep_report(report(subject="../../my script.py"))
    keep_report(report(subject="digits", torch="2.12.0"))
    assert set(kept_reports()) == {"digits", "..-..-my-script.py"}
    assert "torch 2.12.0" in page("/profiles?of=digits")
    assert "../../my script.py" in page("/profiles?of=..-..-my-script.py")


def test_profile_that_does_not_exist(state: Path) -> None:
    keep_report(report(subject="digits"))
    (state / "secret.json").write_text("{}")
    text = page("/profiles?of=../secret")
    assert "there is no profile" in text and "digits" in text


def test_damaged_profile_is_named() -> None:
    keep_report(report(subject="digits"))
    kept_reports()["digits"].write_text("{")
    assert 'class="finding error"' in page("/profiles?of=digits")


def test_texts_of_a_profile_are_escaped() -> None:
    keep_report(report(subject=ATTACK, lines=(line(ATTACK, 2),), device_name=ATTACK))
    text = page()
    assert ATTACK not in text and "&lt;script&gt;" in text
