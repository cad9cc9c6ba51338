"""Everything that is printed but the live display: one function per output."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatout.cli.main import COMMANDS
from flatout.cli.render import show_results, wording
from flatout.cli.render.control_characters import VisibleConsole, visible
from flatout.cli.render.machine_use_lines import machine_use_lines
from flatout.cli.render.tables import metrics_table, plain_table, recipe_table, split_table
from flatout.runs.model.listed import DataState
from flatout.runs.model.new_experiment import NewExperiment
from flatout.schema.addresses import masked_document
from flatout.schema.class_report import Results
from flatout.schema.export_protocol import ExportRequest
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine
from flatout.schema.predict_protocol import InferenceRequest
from flatout.schema.recipe import Recipe
from flatout.schema.run import Run
from flatout.schema.run_lines import EpochEnded, Metric
from flatout.schema.serve_request import ModelRequest
from flatout.schema.suggested_command import show_command
from flatout.schema.train_request import TrainRequest
from flatout.schema.units import bytes_text

RequestT = TypeVar("RequestT", bound=TrainRequest | InferenceRequest | ExportRequest | ModelRequest)

_STATUS_STYLES = {
    "finished": "green", "running": "green", "stopped": "yellow", "interrupted": "yellow",
    "new": "yellow", "failed": "red", "unreadable": "red",
}  # fmt: skip
_SEVERITY_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}
# Wide enough that tables do not wrap in a pipe.
_PIPE_WIDTH = 10_000
_LABEL_WIDTH = 12
# Longest part of a line that is kept together.
_WHOLE = 40


def is_alive(console: Console) -> bool:
    """Whether output can be redrawn: a terminal that moves its cursor."""
    return console.file.isatty() and not console.is_dumb_terminal


def make_console(*, is_error: bool = False) -> Console:
    """A console that keeps to NO_COLOR, FORCE_COLOR and TERM, and has no width in a pipe."""
    stream = sys.stderr if is_error else sys.stdout
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    is_plain = console.no_color or console.is_dumb_terminal or not console.is_terminal
    return VisibleConsole(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if is_plain else "auto",
        width=None if stream.isatty() else _PIPE_WIDTH,
    )


def print_json(value: Any) -> None:
    """One document on stdout."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(masked_document(text.decode()) + "\n")


def print_long_json(head: dict[str, Any], name: str, values: Iterable[Any]) -> None:
    """One document on stdout, whose last member may be larger than memory."""
    text = msgspec.json.format(msgspec.json.encode(head), indent=2).decode()
    sys.stdout.write(f'{text.removesuffix("}").rstrip()},\n  "{name}": [')
    separator = "\n    "
    for value in values:
        sys.stdout.write(separator + masked_document(msgspec.json.encode(value).decode()))
        separator = ",\n    "
    sys.stdout.write("\n  ]\n}\n")


def print_note(text: str) -> None:
    """A message for people, next to the output."""
    console = make_console(is_error=True)
    for line in _typeable(text).splitlines():
        for part in _wrapped(line, _room(console, 0)):
            console.print(part, soft_wrap=True)


def status_text(status: str) -> Text:
    """The status of a run, colored."""
    return Text(status, _STATUS_STYLES[status])


def print_diff(diff: str) -> None:
    """The diff of a file, on stderr."""
    console = make_console(is_error=True)
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff.splitlines():
        console.print(Text(line, styles.get(line[:1], "")), soft_wrap=True)


def print_lines(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    """Lines that begin with a label; long ones continue under their beginning."""
    lines = list(lines)
    indent = max([_LABEL_WIDTH, *(len(label) + 1 for label, _ in lines)])
    for label, text in lines:
        for part in _wrapped(text, _room(console, indent)):
            console.print(Text.assemble((f"{label:<{indent}}", "bold"), part), soft_wrap=True)
            label = ""


def print_command(console: Console, label: str, command: str) -> None:
    """Prints a command as it can be typed here; never broken, so that it can be copied."""
    head = f"{label:<{max(_LABEL_WIDTH, len(label) + 1)}}"
    console.print(Text.assemble((head, "bold"), _typeable(command)), soft_wrap=True)


def print_finding(finding: Finding, console: Console | None = None) -> None:
    """An error or warning on stderr, in the one shape that all of them have."""
    console = console or make_console(is_error=True)
    first = Text.assemble((f"{finding.severity}: ", _SEVERITY_STYLES[finding.severity]))
    _print_wrapped(console, first, finding.problem)
    if finding.because:
        _print_wrapped(console, Text("  because: "), finding.because)
    # Commands to copy, and quoted lines, are never wrapped.
    for text in finding.evidence:
        console.print(f"    {text}", soft_wrap=True)
    for fix in finding.fixes:
        is_prose = ", " in fix.text or "; " in fix.text
        text = _typeable(fix.text)
        if is_prose:
            _print_wrapped(console, Text("  fix: "), text)
        else:
            console.print(f"  fix: {text}", soft_wrap=True)
    console.print(f"  see: {_typeable(finding.see)}", soft_wrap=True)


def _print_wrapped(console: Console, first: Text, text: str) -> None:
    for number, part in enumerate(_wrapped(text, _room(console, len(first)))):
        console.print((Text(" " * 4) if number else first) + part, soft_wrap=True)


def print_advice(command: str, why: str) -> None:
    """Prints the advice of bare `flatout`."""
    console = make_console()
    console.print("flatout trains at the full speed of the machine you already have: everything is")
    console.print("measured, every choice says why, and nothing that was computed is lost.\n")
    print_lines(console, [("next", why)])
    # On a line of its own and never broken, so that it can be copied.
    console.print(f"\n    {_typeable(command)}\n", style="bold", soft_wrap=True)
    print_lines(console, [("all", _typeable("flatout --help"))])


def print_written(file: str, experiment: NewExperiment, next_command: str) -> None:
    """Prints the result of `flatout new`."""
    console = make_console()
    of = (
        f"from {experiment.data} in {experiment.path}" if experiment.path else "from synthetic data"
    )
    target = [f"target: {experiment.target}"] if experiment.target else []
    learns = "; ".join([f"{experiment.task}, {of}", *target])
    print_lines(console, [("wrote", file), ("learns", learns)])
    console.print(f"\n    {_typeable(next_command)}\n", style="bold", soft_wrap=True)


def print_run(
    run: Run,
    metrics: Sequence[Metric],
    results: Results,
    checkpoints: Sequence[int],
    split: dict[str, float],
    *,
    is_whole: bool = False,
) -> None:
    """Prints the known facts of a run: first the results, then the settings.

    is_whole: all fields of its recipe, not only those that are not the default.
    """
    console = make_console()
    head = Text.assemble(
        (run.id, "bold"), "  ", (run.status, _STATUS_STYLES[run.status]),
        f"  {wording.progress_text(run)}  {wording.time_text(run.header.created_at)}",
    )  # fmt: skip
    console.print(head, soft_wrap=True)
    failure = run.failure
    if failure is not None:
        print_finding(failure, console)
    _print_facts(console, run, checkpoints)
    if run.utilization is not None and run.utilization.are_limits_missing:
        text = "its share of what this machine can do (MFU): flatout bench limits"
        console.print(Text(f"{'':<{_LABEL_WIDTH}}{text}", "dim"), soft_wrap=True)
    print_lines(console, machine_use_lines(run))
    if run.validations or any(isinstance(line, EpochEnded) for line in metrics):
        _print_section(console, "metrics", metrics_table(metrics))
    if run.recipe:
        _print_recipe(console, run, run.recipe, is_whole=is_whole)
    show_results.print_results(console, results, run.started.unit if run.started else "samples")
    if split:
        _print_section(console, "time", split_table(split))
    for finding in (*run.findings, *(one.finding for one in run.trackers)):
        if finding is not None and finding != failure:
            console.print()
            print_finding(finding, console)
    console.print()
    print_next_steps(console, run, is_shown=True)


def _print_facts(console: Console, run: Run, checkpoints: Sequence[int]) -> None:
    result = wording.result_text(run)
    print_lines(console, [
        *([("result", result)] if result else []),
        *([("ended", run.ending_reason)] if run.ending_reason else []),
        ("experiment", wording.experiment_text(run.header.spec)),
        *([("config", wording.config_text(run.header.config))] if run.header.config else []),
        *([("data", wording.data_text(run.started))] if run.started else []),
        *machine_lines(run.header.machine),
        *([("recipe", wording.recipe_text(run.recipe))] if run.recipe else []),
        *map(wording.adaptation_line, run.adaptations),
        *map(wording.file_change_line, run.file_changes),
        ("folder", wording.home_text(run.folder)),
        ("checkpoints", wording.checkpoints_text(checkpoints)),
        *([("", wording.cost_text(run.checkpointing))] if run.checkpointing else []),
        *([("speed", wording.speed_text(run))] if run.utilization else []),
        *(("tracker", wording.tracker_text(one)) for one in run.trackers),
    ])  # fmt: skip


def _print_recipe(console: Console, run: Run, recipe: Recipe, *, is_whole: bool) -> None:
    table = recipe_table(recipe, is_whole=is_whole)
    if table.row_count:
        _print_section(console, "recipe", table)
    if not is_whole:
        what = "all fields, with reasons" if table.row_count else "recipe: all defaults; reasons"
        console.print()
        console.print(f"{what}: {_typeable(show_command(run.typed, '--recipe'))}", soft_wrap=True)


def print_plots_begun(folder: Path | None, *, is_error: bool) -> None:
    """Prints the path of a training's plots, if there will be any."""
    if folder is not None:
        text = f"being drawn in {wording.home_text(str(folder))}"
        print_lines(make_console(is_error=is_error), [("plots", text)])


def print_next_steps(console: Console, run: Run, *, is_shown: bool = False) -> None:
    """Prints suggestions for a run; commands are never broken, so that they can be copied."""
    # Only here: most commands that print have no run, and should not wait for what runs import.
    from flatout.runs.trackers import typed_trackers

    suggested = wording.next_steps(run, is_shown=is_shown, track=typed_trackers(run))
    steps = [(_typeable(command), use) for command, use in suggested]
    width = max(len(command) for command, _ in steps)
    room = _room(console, _LABEL_WIDTH)
    is_wide = room is None or all(width + 3 + len(use) <= room for _, use in steps)
    for number, (command, use) in enumerate(steps):
        label = "" if number else "next"
        line = f"{command:<{width}}   {use}" if is_wide else command
        console.print(Text.assemble((f"{label:<{_LABEL_WIDTH}}", "bold"), line), soft_wrap=True)
        if not is_wide:
            console.print(Text(f"{'':<{_LABEL_WIDTH + 2}}{use}", "dim"), soft_wrap=True)


def machine_lines(machine: Machine | None) -> list[tuple[str, str]]:
    """The machine in a line or two."""
    return [("machine", wording.machine_text(machine))] if machine else []


def print_rows(lines: Iterable[str]) -> None:
    """Lines of results; as they are, but wrapped and without control characters on a terminal."""
    is_shown = sys.stdout.isatty()
    width = make_console().width
    for line in lines:
        shown = [visible(line)] if is_shown else [line]
        if is_shown and len(shown[0]) > width:
            indent = " " * (len(shown[0]) - len(shown[0].lstrip()))
            shown = textwrap.wrap(
                shown[0], width, initial_indent="", subsequent_indent=indent,
                break_on_hyphens=False, break_long_words=False, replace_whitespace=False,
            )  # fmt: skip
        sys.stdout.write("".join(f"{part}\n" for part in shown))
    sys.stdout.flush()


def print_evaluation(rows: Iterable[tuple[str, str, str]]) -> None:
    """Metrics as recorded in training, and as computed now."""
    table = plain_table("", "recorded", "now")
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


def print_data(data_sets: Sequence[DataState]) -> None:
    """A few lines for each data set."""
    lines = []
    for data_set in data_sets:
        get = f"not downloaded: {_typeable(f'flatout data get {data_set.name}')}"
        lines += [
            (data_set.name, f"{data_set.title}{wording.DOT}{bytes_text(data_set.size_bytes)}"),
            ("", f"{data_set.licence}{wording.DOT}{data_set.source}"),
            ("", f"in {wording.home_text(data_set.folder)}" if data_set.folder else get),
        ]
    print_lines(make_console(), lines)


def confirm(question: str) -> bool:
    """A yes or no from the terminal; no if there is no terminal."""
    if not sys.stdin.isatty():
        return False
    return make_console(is_error=True).input(
        f"{question} [y/N] ", markup=False
    ).strip().lower() in ("y", "yes")


def with_trust(request: RequestT, run: str | None) -> RequestT:
    """A request about a run, trusted if the user at the terminal allows its code to run."""
    if run is None or request.is_trusted:
        return request
    from flatout.runs import api as runs_api

    folder = runs_api.folder_elsewhere(run)
    if folder is None or not _confirms_trust(folder):
        return request
    return msgspec.structs.replace(request, is_trusted=True)


def _confirms_trust(folder: Path) -> bool:
    if not sys.stdin.isatty():
        return False
    print_note(f"{folder} is not among your runs. Continuing runs its experiment.py,\n"
               "with the interpreter that its run.json names.")  # fmt: skip
    return confirm("Run code from this folder?")


def _typeable(text: str) -> str:
    """Commands in a text as they can be typed where `flatout` is not on the shell's path."""
    if not _COMMAND.search(text):
        return text
    from flatout.runs import api as runs_api

    command = wording.near_text(runs_api.own_command())
    return _COMMAND.sub(lambda match: command, text)


# Not the package (`pip install flatout==0.1.0`), not a sentence about it.
_COMMAND = re.compile(
    rf"(?<![\w./-])flatout(?= (?:{'|'.join(name for name, _, _ in COMMANDS)}|--\w+)\b)"
)


def _room(console: Console, indent: int) -> int | None:
    """Available width for text; None in a pipe, whose reader wraps lines."""
    return max(20, console.width - indent) if console.file.isatty() else None


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    # Parts between dots stay whole where they are short. A line may end in the dot between two;
    # beginning with it would look like a list.
    parts = text.split(wording.DOT)
    whole = [part.replace(" ", "\u00a0") if len(part) <= _WHOLE else part for part in parts]
    bound = f"\u00a0{wording.DOT[1:]}".join(whole) if len(parts) > 1 else text
    lines = textwrap.wrap(bound, width, break_on_hyphens=False, break_long_words=False) or [""]
    return [line.replace("\u00a0", " ") for line in lines]


def _print_section(console: Console, title: str, table: Table) -> None:
    console.print()
    console.print(title, style="bold")
    console.print(table)
