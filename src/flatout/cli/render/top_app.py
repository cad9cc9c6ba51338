"""The live view of `flatout top`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from flatout.cli.render.control_characters import visible
from flatout.cli.render.top_text import styled
from flatout.monitor.top_view import TopView, ViewRequest, adjusted, keys_line, top_view
from flatout.schema.top_frame import TopFrame, TopProcess

_FRAMES_KEPT = 60


class EndQuestion(ModalScreen[bool]):
    """Asks whether a process should end; anything but y means no."""

    CSS = """
    EndQuestion { align: center middle; background: transparent; }
    #question {
        width: auto; max-width: 100%; height: auto; padding: 0 1; border: ascii;
        background: ansi_default;
    }
    """
    BINDINGS = [("y", "answer(True)"), ("n,escape,q,enter", "answer(False)")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The question alone."""
        yield Static(Text(self._text), id="question")

    def action_answer(self, is_yes: bool) -> None:
        """Closes the question."""
        self.dismiss(is_yes)


class SearchBox(ModalScreen[str]):
    """Asks for a part of a run's or a process's name."""

    CSS = """
    SearchBox { align: left bottom; background: transparent; }
    #search { height: 1; border: none; padding: 0; background: ansi_default; }
    """
    BINDINGS = [("escape", "cancel")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """One line to type in."""
        yield Input(self._text, placeholder="part of a name", id="search")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Takes what was typed."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Leaves the filter as it was."""
        self.dismiss(self._text)


class TopApp(App[None]):
    """Frames as they are taken, until the user quits.

    Args:
        take: gives the present frame.
        end_process: asks a process to end, and gives why it was not possible.
        every_s: how often a frame is taken.

    failure: what has ended it, if anything.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #body { height: 1fr; scrollbar-size-vertical: 0; background: ansi_default; }
    #lines { height: auto; width: 1fr; }
    #keys { height: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [
        ("q,ctrl+c", "quit"), ("s", "adjust('sort')"), ("r", "adjust('reverse')"),
        ("escape", "adjust('clear')"), ("p", "pause"), ("slash", "search"), ("k", "end_process"),
        ("down", "select(1)"), ("up", "select(-1)"), ("pagedown", "page(1)"),
        ("pageup", "page(-1)"),
    ]  # fmt: skip

    def __init__(
        self,
        take: Callable[[], TopFrame],
        end_process: Callable[[TopProcess], str | None],
        every_s: float,
    ) -> None:
        # The colors of the terminal, and none with NO_COLOR.
        super().__init__(ansi_color=True)
        self._take = take
        self._end_process = end_process
        self._every_s = every_s
        self._frames: deque[TopFrame] = deque(maxlen=_FRAMES_KEPT)
        self._request = ViewRequest()
        self._view: TopView | None = None
        self._is_paused = False
        self._message = ""
        self.failure: Exception | None = None

    def compose(self) -> ComposeResult:
        """The lines, and the keys below them."""
        body = VerticalScroll(Static(id="lines"), id="body")
        body.can_focus = False
        yield body
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Takes the first frame, and then one after another."""
        self.tick()
        self.set_interval(self._every_s, self.tick)

    def on_resize(self, event: Resize) -> None:
        """Fits the lines to the new width."""
        self._request = msgspec.structs.replace(self._request, width=event.size.width)
        self.show_frame()

    def tick(self) -> None:
        """Takes the next frame."""
        if self._is_paused:
            return
        try:
            self._frames.append(self._take())
            self.show_frame()
        # Textual would print it over the screen; who has started the view reports it.
        except Exception as error:  # noqa: BLE001
            self.failure = error
            self.exit()

    def show_frame(self) -> None:
        """Shows the newest frame as it is requested now."""
        if not self._frames:
            return
        # The question of a process lies over the lines, which change below it.
        screen = self.screen_stack[0]
        width = max(1, self.size.width)
        self._request = msgspec.structs.replace(self._request, width=width)
        before, self._view = self._view, top_view(list(self._frames), self._request)
        is_same_height = before is not None and len(before.lines) == len(self._view.lines)
        lines = screen.query_one("#lines", Static)
        lines.update(styled(self._view.lines), layout=not is_same_height)
        text = self._message or keys_line(self._request, width, is_paused=self._is_paused)
        screen.query_one("#keys", Static).update(Text(visible(text), no_wrap=True), layout=False)

    def action_adjust(self, what: str) -> None:
        """Changes the order or the filter of what is shown."""
        self._request, self._message = adjusted(self._request, what), ""
        self.show_frame()

    def action_pause(self) -> None:
        """Stops taking frames, or continues."""
        self._is_paused = not self._is_paused
        self.show_frame()

    def action_search(self) -> None:
        """Asks for a filter."""

        def take(text: str | None) -> None:
            self._request = msgspec.structs.replace(self._request, search=text or "")
            self.show_frame()

        self.push_screen(SearchBox(self._request.search), take)

    def action_select(self, offset: int) -> None:
        """Chooses the next process, or the one before."""
        pids = [process.pid for process in self._view.processes] if self._view else []
        if not pids:
            self.action_page(offset)
            return
        at = pids.index(self._request.selected) + offset if self._request.selected in pids else 0
        selected = pids[max(0, min(len(pids) - 1, at))]
        self._request, self._message = (
            msgspec.structs.replace(self._request, selected=selected), "",
        )  # fmt: skip
        self.show_frame()
        if self._view is not None and self._view.selected_line is not None:
            body = self.query_one("#body")
            body.scroll_to(y=max(0, self._view.selected_line - body.size.height + 3), animate=False)

    def action_page(self, direction: int) -> None:
        """Scrolls."""
        body = self.query_one("#body")
        body.scroll_relative(y=direction * max(1, body.size.height - 1), animate=False)

    def action_end_process(self) -> None:
        """Asks whether the chosen process should end, if it is the user's own."""
        shown = self._view.processes if self._view else ()
        process = next((one for one in shown if one.pid == self._request.selected), None)
        if process is None:
            self._message = "choose a process first: up, down"
            self.show_frame()
            return
        name = f"process {process.pid} ({visible(process.name or '?')})"
        if not process.is_mine:
            self._message = f"{name} belongs to {process.user or 'another user'}"
            self.show_frame()
            return

        def answer(is_yes: bool | None) -> None:
            if is_yes:
                problem = self._end_process(process)
                self._message = f"{name}: {problem}" if problem else f"asked {name} to end"
            self.show_frame()

        self.push_screen(EndQuestion(f"End {name} (SIGTERM)? y / n"), answer)
