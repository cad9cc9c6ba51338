"""The scripts for PowerShell, read to their ends by a parser of it, without a Windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import UsageError
from flatout.setup.goals.wsl import plan_wsl
from flatout.setup.tables import shipped_tables
from flatout.setup.windows_script import script_text

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


def scripts() -> dict[str, str]:
    spec = spec_from_file_location("setup_plans", Path(__file__).with_name("setup_plans.py"))
    assert spec is not None and spec.loader is not None
    plans = module_from_spec(spec)
    spec.loader.exec_module(plans)
    found = {"install.ps1": INSTALL.read_text(encoding="utf-8")}
    for name, machine in plans.machines():
        try:
            wanted = plan_wsl(machine, shipped_tables(), ("torch", "jax"))
        except UsageError:
            continue
        found[name] = script_text(wanted)
    return found


def test_scripts_have_no_error_of_syntax(faults: Callable[[str], list[str]]) -> None:
    found = scripts()
    assert len(found) >= 5
    assert {name: faults(script) for name, script in found.items() if faults(script)} == {}


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


def test_a_download_that_cannot_go_on_begins_anew() -> None:
    functions = functions_of(INSTALL.read_text(encoding="utf-8"))
    codes = re.search(r"@\((\d+), (\d+)\) -contains \$code", functions["Receive-File"])
    assert codes is not None and set(codes.groups()) == {"22", "33"}
    body = functions["Get-Uv"]
    removed = body.index("Remove-Item -Force -LiteralPath $archive")
    assert body.index("Receive-File") < removed < body.rindex("Receive-File")
