"""The effect of an action on a file: its bytes before in, its bytes afterwards out."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.schema.plan import Block, Edit, Write
from flatout.system.changes.block import with_block
from flatout.system.changes.ini import with_setting
from flatout.system.changes.json_object import with_entry
from flatout.system.changes.text_encoding import DecodedText, UnreadableText, decode


def content_after(action: Edit | Block | Write, content: bytes | None) -> bytes | None:
    """The bytes of a file as the action leaves it; None if there is no file.

    Raises:
        UsageError: settings-file-broken.
    """
    if isinstance(action, Write):
        return action.text.encode()
    if content is None and _takes_out(action):
        return None
    try:
        text = decode(content or b"")
        is_new_of_windows = content is None and action.file.lower().endswith(".wslconfig")
        edited = _edited(action, text.text, "\r\n" if is_new_of_windows else text.newline)
    except UnreadableText as error:
        raise UsageError(
            "settings-file-broken",
            f"{action.file} is malformed and was not changed.",
            because=str(error),
            fix="fix the file by hand, then try again",
        ) from error
    if isinstance(action, Edit) and action.encoding == "utf-8":
        return DecodedText(text=edited).encoded()
    return DecodedText(text=edited, encoding=text.encoding, mark=text.mark).encoded()


def _edited(action: Edit | Block, text: str, newline: str) -> str:
    if isinstance(action, Block):
        return with_block(text, action.name, action.lines, newline)
    for entry in action.entries:
        if action.form == "json":
            text = with_entry(text, entry.place, entry.value, newline)
        else:
            section, key = entry.place
            value = None if entry.value is None else str(entry.value)
            text = with_setting(text, section, key, value, newline)
    return text


def _takes_out(action: Edit | Block) -> bool:
    if isinstance(action, Block):
        return not action.lines
    return all(entry.value is None for entry in action.entries)
