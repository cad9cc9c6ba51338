"""Changes to a machine, step by step, as data: computed, shown, then applied."""

from __future__ import annotations

from typing import Literal

import msgspec

# safe: no root, nothing removed or restarted, and only flatout's folders or the environment asked
# about are written. ask: shown with what it does, and asked first. manual: only shown.
Safety = Literal["safe", "ask", "manual"]
Place = Literal["here", "wsl", "linux", "windows", "powershell", "host", "container"]
Restarts = Literal["wsl", "windows", "linux", "docker"]

# Downloads of gigabytes over a slow line.
_PACKAGES_LIMIT_S = 7200.0


class RunProgram(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """A program with its arguments; no shell reads them.

    It must be one that can be run again: who was killed in the middle does not know how far it got.

    time_limit_s: then it is ended, with all it has started.
    environment: variables added to flatout's own.
    files: those it writes; they are kept before, and put back by an undo.
    makes: a folder that it makes, so one that does not exist yet; an undo removes it.
    """

    argv: tuple[str, ...]
    time_limit_s: float = 600.0
    environment: dict[str, str] = {}
    files: tuple[str, ...] = ()
    makes: str | None = None


class InstallPackages(msgspec.Struct, frozen=True, kw_only=True, tag="packages"):
    """Packages of one Python environment, changed by pip, or by uv where there is no pip.

    The environment's files are kept before, without taking room, and put back by an undo; no
    network is needed for that.

    python: the environment's interpreter. words: as pip takes them: ("install", "numpy<2").
    """

    python: str
    words: tuple[str, ...]
    time_limit_s: float = _PACKAGES_LIMIT_S


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a file of settings, and its value: None takes it out.

    place: section and key of an ini file; the keys from the outermost on of a JSON file.
    value: in an ini file a text, as it should be written there.
    """

    place: tuple[str, ...]
    value: bool | int | float | str | list[str] | None


class Edit(msgspec.Struct, frozen=True, kw_only=True, tag="edit"):
    """Entries of a file of settings, changed; everything else in it stays as it is.

    form: "ini" (.wslconfig, wsl.conf) or "json" (daemon.json).
    encoding: what the file should be written in; None keeps its own.
    """

    file: str
    form: Literal["ini", "json"]
    entries: tuple[Entry, ...]
    encoding: Literal["utf-8"] | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """Lines between two marks in a text file, a shell's profile say; no lines take them out.

    name: shown in the markers; a block of that name is replaced.
    """

    file: str
    name: str
    lines: tuple[str, ...]


class Write(msgspec.Struct, frozen=True, kw_only=True, tag="write"):
    """A whole file, as text in UTF-8. is_executable: it may be run."""

    file: str
    text: str
    is_executable: bool = False


class Move(msgspec.Struct, frozen=True, kw_only=True, tag="move"):
    """A file or folder gets another name on the same disk, where nothing has that name yet."""

    source: str
    target: str


Action = RunProgram | InstallPackages | Edit | Block | Write | Move


class Prints(msgspec.Struct, frozen=True, kw_only=True, tag="prints"):
    """Holds where a program ends well and prints this as a whole word; it changes nothing."""

    argv: tuple[str, ...]
    text: str = ""


class Exists(msgspec.Struct, frozen=True, kw_only=True, tag="exists"):
    """Holds where there is such a file or folder."""

    path: str


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One change, and all that must be known before it is made.

    text: what it does, in a line. changes: what is different afterwards.
    where: on which side it runs. needs_root: root, or Windows' administrator.
    done_if: then it is passed over. A file with the wanted content is skipped without it.
    restarts: what is restarted, so that whatever runs in it ends.
    removes_packages: packages are gone afterwards that nothing replaces.
    undo: a command that takes it back; what is kept before needs none.
    shows: commands that change nothing; what they print is shown before asking.
    size_bytes: to download, if known. time_s: how long it takes, if known.
    """

    text: str
    action: Action
    changes: str
    where: Place = "here"
    needs_root: bool = False
    safety: Safety = "ask"
    done_if: Prints | Exists | None = None
    restarts: Restarts | None = None
    removes_packages: bool = False
    undo: tuple[str, ...] | None = None
    shows: tuple[tuple[str, ...], ...] = ()
    size_bytes: int | None = None
    time_s: float | None = None

    @property
    def can_be_undone(self) -> bool:
        """Whether `flatout undo` can take it back."""
        action = self.action
        return (
            not isinstance(action, RunProgram)
            or self.undo is not None
            or bool(action.files or action.makes)
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps towards one goal, in their order."""

    goal: str
    steps: tuple[PlanStep, ...]

    @property
    def safety(self) -> Safety:
        """The safety of the least safe step."""
        order: tuple[Safety, ...] = ("manual", "ask", "safe")
        return next(
            (safety for safety in order if any(step.safety == safety for step in self.steps)), "ask"
        )


def files_of(action: Action) -> tuple[str, ...]:
    """The files that an action writes, and that are kept before."""
    if isinstance(action, Edit | Block | Write):
        return (action.file,)
    return action.files if isinstance(action, RunProgram) else ()


def edit_text(edit: Edit | Block) -> str:
    """The content and file of an edit: "/etc/wsl.conf: [gpu] without enabled"."""
    if isinstance(edit, Block):
        return f"{edit.file}: {'; '.join(edit.lines) or f'without the block {edit.name}'}"
    parts = [f"written in {edit.encoding.upper()}"] if edit.encoding else []
    for entry in edit.entries:
        key = ".".join(entry.place)
        if edit.form == "ini":
            key = f"[{entry.place[0]}] {entry.place[1]}"
        parts.append(f"without {key}" if entry.value is None else f"{key}={entry.value}")
    return f"{edit.file}: {', '.join(parts)}"
