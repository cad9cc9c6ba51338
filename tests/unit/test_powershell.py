"""The scripts for PowerShell, read to their ends by a parser of it, without a Windows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from flatout.compat.tables import shipped_tables
from flatout.errors import UsageError
from flatout.schema.plan import RunProgram
from flatout.setup.host.windows_script import TEMPLATE, script_text
from flatout.setup.host.wsl import WslPlan, plan_wsl

INSTALL = Path(__file__).resolve().parents[2] / "install.ps1"
# What is taken out of a script that can be read.
BREAKS = ("{", "}", ")")


@pytest.fixture(scope="module")
def faults() -> Callable[[str], list[str]]:
    """Where a script cannot be read, with what stands there."""
    try:
        import tree_sitter_powershell
        from tree_sitter import Language, Parser
    except ImportError:
        pytest.skip("needs a parser of PowerShell: pip install 'flatout[dev]'")
    parser = Parser(Language(tree_sitter_powershell.language()))

    def found(script: str) -> list[str]:
        return list(_faults(parser.parse(script.encode()).root_node))

    return found


def _faults(node: Any) -> Iterator[str]:
    if node.is_error or node.is_missing:
        yield f"line {node.start_point[0] + 1}: {node.text.decode()[:80]!r} ({node.type})"
    for child in node.children if node.has_error else ():
        yield from _faults(child)


def wsl_plans(frameworks: tuple[str, ...]) -> Iterator[tuple[str, WslPlan]]:
    """The machines whose way goes into WSL, and their plans."""
    spec = spec_from_file_location("setup_plans", Path(__file__).with_name("setup_plans.py"))
    assert spec is not None and spec.loader is not None
    plans = module_from_spec(spec)
    spec.loader.exec_module(plans)
    for name, machine in plans.machines():
        with suppress(UsageError):
            yield name, plan_wsl(machine, shipped_tables(), frameworks)


def scripts() -> dict[str, str]:
    found = {name: script_text(wanted) for name, wanted in wsl_plans(("torch", "jax"))}
    return {"install.ps1": INSTALL.read_text(encoding="utf-8"), **found}


def test_scripts_have_no_error_of_syntax(faults: Callable[[str], list[str]]) -> None:
    found = scripts()
    assert len(found) >= 5
    assert {name: faults(script) for name, script in found.items() if faults(script)} == {}


def test_the_template_is_powershell_itself(faults: Callable[[str], list[str]]) -> None:
    assert faults(TEMPLATE.read_text(encoding="utf-8")) == []
    assert not any("@@" in script for script in scripts().values())


@pytest.mark.parametrize("sign", BREAKS)
def test_an_error_of_syntax_is_seen(faults: Callable[[str], list[str]], sign: str) -> None:
    script = scripts()["install.ps1"]
    place = script.index(sign, script.index("function Open-Lock"))
    assert faults(script[:place] + script[place + 1 :])


def functions_of(script: str) -> dict[str, str]:
    """The bodies of a PowerShell script's functions, by name."""
    found = re.findall(r"^function ([\w-]+)[^\n]*\{\n(.*?)^\}", script, re.DOTALL | re.MULTILINE)
    return dict(found)


def variables(script: str) -> set[str]:
    """Settings of pip and uv that a script reads or sets."""
    return set(re.findall(r"\b(?:UV|PIP)_[A-Z_]+\b|\bSSL_CERT_FILE\b", script))


def test_both_install_scripts_know_the_same_settings() -> None:
    shell = INSTALL.with_suffix(".sh").read_text(encoding="utf-8")
    assert variables(INSTALL.read_text(encoding="utf-8")) == variables(shell)


def test_install_on_windows_does_what_the_other_does() -> None:
    functions = functions_of(INSTALL.read_text(encoding="utf-8"))
    # A folder of sources that is installed already, in that version, is not installed again.
    assert "Get-SourceVersion $From" in functions["Test-Installed"]
    assert functions["Install"].index("Use-Checkout") < functions["Install"].index("$made =")
    assert functions["New-Environment"].index("Copy-PipSettings") < functions[
        "New-Environment"
    ].index("Invoke-Program $uv")


def test_a_mirrors_password_is_not_shown() -> None:
    script = INSTALL.read_text(encoding="utf-8")
    pattern, instead = re.findall("-replace '([^']*@)', '([^']*)'", script)[0]
    assert re.sub(pattern, instead, "https://me:secret@host/a/b@1") == "https://****@host/a/b@1"
    body = functions_of(script)["Get-Uv"]
    shown = [line for line in body.splitlines() if re.search(r"\b(Say|Fail)\b", line)]
    assert not any("$url" in line or '" "$_"' in line for line in shown)
    assert "$shown = Hide-Password $url" in body


@pytest.mark.parametrize(
    ("frameworks", "line"),
    [
        (("jax<0.12", "torch"), "$line = 'flatout setup ''jax<0.12'' torch'"),
        (("pytorch", "jax"), "$line = 'flatout setup pytorch jax'"),
    ],
)
def test_versions_are_quoted_for_both_shells(
    faults: Callable[[str], list[str]], frameworks: tuple[str, ...], line: str
) -> None:
    _, wanted = next(wsl_plans(frameworks))
    text = script_text(wanted)
    assert line in text.splitlines() and faults(text) == []
    last = wanted.plan.steps[-1]
    assert isinstance(last.action, RunProgram) and last.undo is not None
    assert shlex.split(last.action.argv[-1]) == ["flatout", "setup", *frameworks, "--yes"]
    names = ["torch" if "torch" in one else "jax" for one in frameworks]
    assert last.undo[-1] == "; ".join(f"flatout setup --remove {one} --yes" for one in names)


def test_a_download_that_cannot_go_on_begins_anew() -> None:
    functions = functions_of(INSTALL.read_text(encoding="utf-8"))
    codes = re.search(r"@\((\d+), (\d+)\) -contains \$code", functions["Receive-File"])
    assert codes is not None and set(codes.groups()) == {"22", "33"}
    body = functions["Get-Uv"]
    removed = body.index("Remove-Item -Force -LiteralPath $archive")
    assert body.index("Receive-File") < removed < body.rindex("Receive-File")
