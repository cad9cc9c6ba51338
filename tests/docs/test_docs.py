"""The documents are true: what they show runs, what they name is there, what is there is named.

console  lines beginning with `$ ` are run; other lines must be in the output (`...` is anything)
python   a block that defines an experiment is trained (train_files.py); any other is run
sh       shown only
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from support.forked_commands import ForkedCommands

from flatout.cli.main import main
from flatout.engine.experiment import Experiment
from flatout.runs.experiment_source import built_in_names
from flatout.schema.recipe import recipe_fields

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "LOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]  # fmt: skip
# Their blocks take minutes, so they are not run.
LINKED = [*PAGES, ROOT / "benchmarks" / "README.md", ROOT / "campaigns" / "README.md"]
# Those on moving over are run by test_moving.py, beside the tools they come from.
RUN_PAGES = [page for page in PAGES if page.parent.name != "moving"]
RULE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
BAD_NEWS = {
    "UsageError", "RunFailed", "FlatoutError", "Finding", "require_packages", "load_package",
}  # fmt: skip
# A run of a documented command on two busy cores, start of torch included.
COMMAND_LIMIT_S = 180


@dataclass(frozen=True)
class Block:
    """A fenced block; text_before: what stands between it and the block before it."""

    language: str
    text: str
    line: int
    text_before: str


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    end = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(match[1], match[2], line, text[end : match.start()])
        end = match.end()


def headings_of(text: str) -> list[str]:
    """The headings of a page, without those inside blocks."""
    bare = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", bare, re.MULTILINE)


def sections_of(text: str) -> dict[str, str]:
    """Heading -> the text below it, with the sections that belong to it."""
    bare = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    sections = {}
    for match in re.finditer(r"^(#+) (.+)$", bare, re.MULTILINE):
        following = re.search(rf"^#{{1,{len(match[1])}}} ", bare[match.end() :], re.MULTILINE)
        sections[match[2]] = bare[match.end() :][: following.start() if following else None]
    return sections


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# What they show runs.


@pytest.mark.parametrize("page", RUN_PAGES, ids=name)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    blocks = [
        block
        for block in blocks_of(page.read_text(encoding="utf-8"))
        if block.language in ("console", "python")
    ]
    if not blocks:
        return
    if find_spec("torch") is None:
        pytest.skip("needs torch: the blocks of this page train")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shown = "".join(block.text for block in blocks if block.language == "console")
    experiments: list[Path] = []
    for block in blocks:
        place = f"{page.name}, line {block.line}"
        file = None
        if block.language == "python":
            file = saved(block, tmp_path)
            if file.name in shown:
                # A command of the page runs it.
                continue
            if "def experiment(" in block.text:
                experiments.append(file)
                continue
        train(experiments, tmp_path, place, has_plots=False)
        experiments = []
        if file is None:
            run_console(block.text, tmp_path, place)
        else:
            run(["python", str(file)], tmp_path, 0, place)
    train(experiments, tmp_path, page.name, has_plots=False)


def test_examples_train(tmp_path: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("needs torch: examples train")
    examples = sorted((ROOT / "examples").glob("*.py"))
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    untold = [one.name for one in examples if f"examples/{one.name}" not in pages]
    assert untold == [], "no page tells of them"
    is_lacking = find_spec("transformers") is None
    tried = [one for one in examples if one.name != "huggingface.py" or not is_lacking]
    train(tried, tmp_path, "examples", "--epochs", "1")
    if is_lacking:
        pytest.skip("huggingface.py needs transformers (pip install 'flatout[language]')")


def train(
    files: list[Path], folder: Path, place: str, *options: str, has_plots: bool = True
) -> None:
    """Trains experiments' files one after the other, in one process."""
    if files:
        trainer = str(Path(__file__).with_name("train_files.py"))
        drawing = [] if has_plots else ["--without-plots"]
        run(["python", trainer, *options, *drawing, *map(str, files)], folder, 0, place)


def run_console(text: str, folder: Path, place: str) -> None:
    """Runs the commands of a block; the lines below each must be in what it printed, in order."""
    has_plots = "plots" in text
    for chunk in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = chunk.splitlines()
        command, _, remark = command.partition("  # ")
        code = int(match[1]) if (match := re.search(r"exits with (\d+)", remark)) else 0
        output = run(shlex.split(command), folder, code, place, has_plots=has_plots)
        wanted = [line for line in shown if line.strip() not in ("", "...")]
        pattern = ".*".join(re.escape(line.strip()).replace(r"\.\.\.", ".*") for line in wanted)
        assert re.search(pattern, output, re.DOTALL), f"{place}: `{command}` printed\n{output}"


@functools.cache
def forked() -> ForkedCommands:
    """Runs commands of flatout that need not load it first."""
    source = str(ROOT / "src")
    return ForkedCommands(source, {**os.environ, "PYTHONPATH": source})


def saved(block: Block, folder: Path) -> Path:
    """Writes a block of Python into the file that its page names, or into one of its own."""
    saved_as = re.search(r"[Ss]ave\s+it\s+as\s+`([\w./]+)`", block.text_before)
    file = folder / (saved_as[1] if saved_as else f"block_{block.line}.py")
    file.write_text(block.text, encoding="utf-8")
    return file


def run(argv: list[str], folder: Path, code: int, place: str, *, has_plots: bool = True) -> str:
    """Runs `flatout ...` or `python ...` of this environment in a home of its own."""
    starts = {"flatout": [sys.executable, "-m", "flatout"], "python": [sys.executable]}
    assert argv[0] in starts, f"{place}: `{argv[0]}` cannot be run here; use a block of sh"
    environment = {
        **os.environ, "HOME": str(folder), "USERPROFILE": str(folder), "COLUMNS": "100",
        "FLATOUT_STATE": str(folder / "state"), "PYTHONPATH": str(ROOT / "src"),
        # As in an activated environment: commands are suggested by name, not by path.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        # The same for all pages: which fonts there are, and what torch has compiled.
        "MPLCONFIGDIR": str(folder.parent / "matplotlib"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "compiled"),
    }  # fmt: skip
    if argv[0] == "flatout" and not has_plots and forked().can_run(environment):
        # As where matplotlib is not installed: nothing is drawn.
        done = forked().run(
            argv[1:], environment=environment, folder=folder, missing=("matplotlib",),
            limit_s=COMMAND_LIMIT_S, is_merged=True,
        )  # fmt: skip
    else:
        done = subprocess.run(
            [*starts[argv[0]], *argv[1:]],
            cwd=folder, env=environment, timeout=COMMAND_LIMIT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8",
        )  # fmt: skip
    said = f"{place}: `{shlex.join(argv)}` ended with {done.returncode}, not {code}"
    assert done.returncode == code, f"{said}\n{done.stdout}"
    return done.stdout


# What they name is there.


def slug(heading: str) -> str:
    """The anchor that readers of Markdown give a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_of_a_page_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    # Code in a line may look like a link: `updates["name"](loss)`.
    text = re.sub(r"`[^`\n]*`", "", text)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        is_there = file.exists()
        if is_there and anchor:
            known = [slug(heading) for heading in headings_of(file.read_text(encoding="utf-8"))]
            is_there = anchor in known
        if not is_there:
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_files_named_in_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.parent.name == "rules":
        # The sources of a rule name files of other repositories.
        text = text.partition("**Source.**")[0]
    named = re.findall(
        r"(?<!\w/)\b((?:docs|src|scripts|tests|benchmarks|campaigns|examples)/[\w./-]*\w)", text
    )
    missing = {path for path in named if not (ROOT / path).exists()}
    # architecture.md names files below src/flatout without that beginning.
    assert not {path for path in missing if not (ROOT / "src" / "flatout" / path).exists()}


# What is there is named.


def test_recipe_page_has_every_field_and_no_other() -> None:
    headings = headings_of((ROOT / "docs" / "recipe.md").read_text(encoding="utf-8"))
    reported = {heading.strip("`") for heading in headings if heading.startswith("`")}
    assert reported == set(recipe_fields())


def test_experiments_page_has_every_field_and_no_other() -> None:
    table = sections_of((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"))["Fields"]
    reported = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert reported == {field.name for field in fields(Experiment)}


def test_builtins_page_has_every_built_in_and_no_other() -> None:
    text = (ROOT / "docs" / "builtins.md").read_text(encoding="utf-8")
    assert headings_of(text)[1:] == re.findall(r"^\| \[`([\w-]+)`\]", text, re.MULTILINE)
    assert sorted(headings_of(text)[1:]) == built_in_names()


def commands(
    command: click.Command, path: tuple[str, ...] = ("flatout",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command with all below it, each with its names."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            assert child
            yield from commands(child, (*path, below))


def test_every_command_has_a_section_with_its_options() -> None:
    reported = {
        heading.replace("`", ""): text
        for page in PAGES
        for heading, text in sections_of(page.read_text(encoding="utf-8")).items()
    }
    missing = []
    for path, command in commands(main):
        text = reported.get(" ".join(path), "")
        options = [name for one in command.params if one.param_type_name == "option"
                   for name in (*one.opts, *one.secondary_opts)]  # fmt: skip
        missing += [] if text else [" ".join(path)]
        missing += [f"{' '.join(path)} {name}" for name in options
                    if f"`{name}`" not in text and f"`{name} " not in text]  # fmt: skip
    assert not missing


def rules_in(source: str) -> Iterator[str]:
    """Rule ids that a source file gives to bad news: the first argument, or `rule=`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        # click has a UsageError of its own; ours are imported by name. A class of errors with one
        # id names it in its __init__.
        is_class = isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"
        is_named = isinstance(node.func, ast.Name) and node.func.id in BAD_NEWS
        if not is_named and not (is_class and _is_rule(node.args[:1])):
            continue
        given = [*node.args[:1], *(item.value for item in node.keywords if item.arg == "rule")]
        for part in (part for item in given for part in ast.walk(item)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def _is_rule(nodes: list[ast.expr]) -> bool:
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return any(isinstance(value, str) and RULE.fullmatch(value) for value in values)


def test_errors_page_has_every_rule_and_no_other() -> None:
    rules = {
        rule
        for path in (ROOT / "src" / "flatout").rglob("*.py")
        # Those have pages of their own in docs/rules.
        if path.parent.name != "rules"
        for rule in rules_in(path.read_text(encoding="utf-8"))
    }
    assert {rule for rule in rules if not RULE.fullmatch(rule)} == set(), "not in kebab case"
    headings = headings_of((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    reported = {heading for heading in headings if RULE.fullmatch(heading)}
    assert {"missing": rules - reported, "of nothing": reported - rules} == {
        "missing": set(), "of nothing": set(),
    }  # fmt: skip
