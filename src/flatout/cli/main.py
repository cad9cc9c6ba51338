"""The command `flatout`: finds the subcommand, loads only that one, and maps its errors."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from flatout import __version__
from flatout.errors import FlatoutError, RunFailed, UsageError, nearest, nearest_name

# Name, group in --help, what it does. The module of the same name in `commands` holds `command`;
# this table keeps --help from loading them.
COMMANDS = (
    ("new", "Train", "Write a new experiment."),
    ("train", "Train", "Train an experiment, or resume a run."),
    ("tune", "Train", "Find the fastest correct recipe: speed settings, not hyperparameters."),
    ("sweep", "Train", "Find the best parameters: many trials, each of which is a run."),
    ("runs", "Train", "List, stop and remove runs."),
    ("show", "Train", "Show a run: result, metrics, recipe, where the time went."),
    ("lr", "Train", "Find a learning rate: a range test."),
    ("profile", "Train", "Show where a step's time goes, and what to change."),
    ("compare", "Train", "Compare runs: what differs, and the results."),
    ("predict", "Predict", "Predict with the saved weights of a run."),
    ("evaluate", "Predict", "Recompute the validation metrics of a run's saved weights."),
    ("serve", "Predict", "Answer requests with the saved weights of a run, over HTTP."),
    ("export", "Predict", "Export a run's model to ONNX and other formats."),
    ("loadtest", "Predict", "Send requests to a server, and measure how it answers."),
    ("setup", "Set up", "Create and test an environment that fits this machine."),
    ("envs", "Set up", "List the environments made by `flatout setup`."),
    ("cluster", "Set up", "Run a cluster of containers on this machine."),
    ("doctor", "Diagnose", "Check this machine: what is wrong, why, and how to fix it."),
    ("undo", "Diagnose", "Undo what flatout has changed on this machine."),
    ("explain", "Diagnose", "Find the cause in a log, a traceback or any other text."),
    ("rules", "Diagnose", "List the rules of doctor and explain; check one of your own."),
    ("bench", "Diagnose", "Measure the limits of this machine; compare measurements."),
    ("monitor", "Watch", "Record this machine, warn of problems, export to Prometheus."),
    ("top", "Watch", "Show GPUs, CPUs, memory and running runs, live."),
    ("web", "Watch", "Show this machine and its runs in a browser."),
    ("docs", "Maintain", "Show the documentation."),
    ("data", "Train", "List, download and verify data sets."),
    ("launch", "Train", "Start your own script on several nodes."),
    ("ingest", "Train", "Convert images, tables or texts into shards for training."),
    ("watch", "Watch", "Run any program of yours, and record what it and the machine do."),
    ("compat", "Set up", "Show or update the tables that `setup` chooses from."),
    ("completion", "Maintain", "Print a completion script for your shell."),
    ("disk", "Maintain", "Show what flatout keeps on this disk; delete some of it."),
    ("self", "Maintain", "Update or remove flatout."),
)
# Names of other tools for the same commands.
ELSEWHERE = {
    "help": "flatout --help", "version": "flatout --version", "list": "flatout runs",
    "ls": "flatout runs", "status": "flatout runs", "ps": "flatout runs",
    "rm": "flatout runs rm RUN", "stop": "flatout runs stop RUN", "kill": "flatout runs stop RUN",
    "resume": "flatout train --resume RUN", "fit": "flatout train FILE", "init": "flatout new NAME",
    "create": "flatout new NAME", "test": "flatout evaluate RUN", "eval": "flatout evaluate RUN",
    "validate": "flatout evaluate RUN", "infer": "flatout predict RUN INPUT",
    "deploy": "flatout serve RUN", "server": "flatout serve RUN",
    "ui": "flatout web", "dashboard": "flatout web", "browser": "flatout web",
    "logs": "flatout show RUN --follow", "log": "flatout show RUN --follow",
    "install": "flatout setup", "check": "flatout doctor", "fix": "flatout doctor --fix",
    "update": "flatout self update", "upgrade": "flatout self update",
    "uninstall": "flatout self remove", "download": "flatout data get NAME",
}  # fmt: skip


# The exit code that a shell reports for a program killed by SIGPIPE, such as git.
_SIGPIPE_CODE = 141
# Errors of the system when standard output is a file that cannot grow.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class _PipeClosed(Exception):
    """The reader of standard output, such as `head`, has closed it."""


class _OutputFailed(OSError):
    """The target of standard output accepts no more data."""


@contextlib.contextmanager
def _marked_output() -> Iterator[None]:
    """Distinguishes a failure to write to standard output from one to write anywhere else."""
    stdout = sys.stdout

    def marked(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*arguments: Any) -> Any:
            try:
                return write(*arguments)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                raise _OutputFailed(error.errno, error.strerror) from error

        return written

    calls = {"write": marked(stdout.write), "flush": marked(stdout.flush)}
    # The stream stays the same object: click and rich remember the one they inspected first.
    vars(stdout).update(calls)
    try:
        yield
    finally:
        for name in calls:
            vars(stdout).pop(name, None)


@contextlib.contextmanager
def _report_closed_pipe() -> Iterator[None]:
    """Click exits with 1 when the pipe is closed, as if something had failed."""
    try:
        yield
    except BrokenPipeError:
        raise _PipeClosed from None


class Commands(click.Group):
    """A group whose commands are loaded one at a time."""

    def list_commands(self, context: click.Context) -> list[str]:
        """All names, in the order of --help."""
        return [name for name, _, _ in COMMANDS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Loads a command."""
        if name not in self.list_commands(context):
            return None
        command: click.Command = importlib.import_module(f"flatout.cli.commands.{name}").command
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Loads the command that was named; a mistyped name gets the nearest."""
        is_known = not arguments or arguments[0] in self.list_commands(context)
        # No errors while a shell completes a line.
        if not is_known and not context.resilient_parsing:
            raise UsageError(
                "unknown-command",
                f"flatout has no command `{arguments[0]}`.",
                fix=ELSEWHERE.get(arguments[0])
                or nearest(arguments[0], self.list_commands(context)),
            )
        return super().resolve_command(context, arguments)

    def invoke(self, context: click.Context) -> Any:
        """Runs the command, if the current folder exists."""
        try:
            os.getcwd()
        except FileNotFoundError:
            raise UsageError(
                "current-folder-gone",
                "the current folder no longer exists.",
                because="it was deleted or moved while this shell was in it",
                fix='change to another folder: cd "$HOME"',
            ) from None
        with _report_closed_pipe():
            return super().invoke(context)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Reads the arguments; `--help` is printed here."""
        with _report_closed_pipe():
            return super().make_context(info_name, args, parent, **extra)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by group."""
        for group in dict.fromkeys(group for _, group, _ in COMMANDS):
            with formatter.section(group):
                formatter.write_dl([(name, text) for name, of, text in COMMANDS if of == group])


@click.command(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="flatout %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """All the deep-learning speed of the machine you already have.

    Nothing is assumed, everything is measured, and every choice says why.
    """
    if context.invoked_subcommand is None:
        from flatout.cli.render import show
        from flatout.runs import api as runs_api

        show.print_advice(*runs_api.next_step())


def run(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # The encoding of a redirected stream under Windows may lack some characters.
            stream.reconfigure(errors="replace")
    instruction = os.environ.get("_FLATOUT_COMPLETE")
    if instruction is not None:
        from flatout.cli import shell_completion

        return shell_completion.print_completions(main, instruction)
    try:
        _check_unicode(arguments)
        with _marked_output():
            code = main.main(list(arguments), prog_name="flatout", standalone_mode=False)
            # A failed write may show only now, and Python would print its own message.
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except FlatoutError as error:
        return _report(error, arguments)
    except click.ClickException as error:
        return _report(_from_click(error, arguments), arguments)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except (BrokenPipeError, _PipeClosed):
        _drop_output()
        return _SIGPIPE_CODE
    except _OutputFailed as error:
        _drop_output()
        return _report(
            RunFailed(
                "output-not-writable",
                "cannot write to standard output.",
                because=error.strerror,
                fix="free space where it is written, or redirect it elsewhere",
            ),
            (),
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _own_fault()
        return _report(_full_disk(error), arguments)
    # Anything else that escapes is a bug, and is logged.
    except Exception:  # noqa: BLE001
        return _own_fault()


def _open_closed_streams() -> None:
    """Reopens closed streams (`>&-`): else the next opened file takes their descriptors."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _drop_output() -> None:
    """Discards buffered output, about which Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_unicode(arguments: Sequence[str]) -> None:
    """Refuses bytes that are not UTF-8, which JSON cannot hold: Python hides them in the text."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise UsageError(
                "wrong-usage",
                f"{ascii(argument)} is not valid UTF-8.",
                fix="rename the file or folder",
            )


def _report(error: FlatoutError, arguments: Sequence[str]) -> int:
    from flatout.cli.render import show
    from flatout.schema.finding import finding_from

    finding = finding_from(error)
    show.print_finding(finding)
    if isinstance(error, RunFailed) and error.printed:
        from flatout.cli.flows import explain_failure

        explain_failure.explain(finding, error.printed)
    if "--json" in arguments:
        show.print_json({"error": finding})
    return error.exit_code


def _from_click(error: click.ClickException, arguments: Sequence[str]) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "flatout"
    # Click lists choices on separate lines, with tabs.
    message, fix = " ".join(error.format_message().split()), f"{path} --help"
    if isinstance(error, click.NoSuchOption):
        return _no_such_option(error, fix)
    option = getattr(error, "param", None)
    if isinstance(error, click.MissingParameter) and isinstance(option, click.Option):
        given = next((spelling for spelling in option.opts if spelling in arguments), None)
        if given is not None:
            # What follows the script belongs to the script.
            return UsageError(
                "wrong-usage",
                f"`{given}` comes after the script, so it is passed to the script.",
                fix=f"put it before the script: {path} {given} ... SCRIPT",
            )
    return UsageError("wrong-usage", message, fix=fix)


def _no_such_option(error: click.NoSuchOption, fix: str) -> UsageError:
    command = error.ctx.command if error.ctx else None
    names = [name for parameter in command.params for name in parameter.opts] if command else []
    # Without the dashes, which all options share.
    bare = {name.lstrip("-"): name for name in names if name.startswith("--")}
    near = nearest_name(error.option_name.lstrip("-"), bare)
    return UsageError(
        "wrong-usage",
        f"no such option: {error.option_name}.",
        fix=f"did you mean {bare[near]}? (all: {fix})" if near is not None else fix,
    )


def _full_disk(error: OSError) -> RunFailed:
    return RunFailed(
        "disk-full",
        f"no space left to write {error.filename or 'a file'}.",
        because=error.strerror,
        fix="free space: flatout disk shows what flatout keeps",
    )


def _own_fault() -> int:
    from flatout.runs import api as runs_api

    try:
        location = f"the traceback is in {runs_api.record_crash(traceback.format_exc())}"
    except (FlatoutError, OSError):
        traceback.print_exc()
        location = "the traceback is above"
    print(f"error: this is a bug in flatout; {location}", file=sys.stderr)
    return 3
