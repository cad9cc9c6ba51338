"""The error for packages that are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.errors import UsageError
from flatout.system.optional_packages import load_package, require_packages


def test_missing_packages_are_named_as_pip_knows_them() -> None:
    with pytest.raises(UsageError) as caught:
        require_packages(
            "web-package-missing", "`flatout web`", ["json", "no_such_one", "no_such_other"],
            extra="web",
        )  # fmt: skip
    error = caught.value
    assert error.problem == "`flatout web` needs the packages no-such-one and no-such-other."
    assert error.rule == "web-package-missing" and error.fix == "pip install 'flatout[web]'"
    assert sys.prefix in (error.because or "")


def test_folder_of_the_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looks_like_one").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        require_packages("web-package-missing", "a test", ["looks_like_one"], extra="web")
    assert caught.value.problem == "a test needs the package looks-like-one."


def test_packages_that_are_there_are_not_loaded() -> None:
    require_packages("web-package-missing", "a test", ["antigravity"], extra="dev")
    assert "antigravity" not in sys.modules


def test_package_without_what_it_needs_itself_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_one\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        load_package("optuna-not-installed", "a sweep", "half_installed", extra="sweep")
    error = caught.value
    assert "needs the package half-installed, which is installed but" in error.problem
    assert error.because == "No module named 'no_such_one'"
    assert error.rule == "optuna-not-installed" and error.fix == "pip install 'flatout[sweep]'"


def test_package_is_loaded_by_its_name() -> None:
    loaded = load_package("optuna-not-installed", "a test", "json", extra="dev")
    assert loaded is sys.modules["json"]
