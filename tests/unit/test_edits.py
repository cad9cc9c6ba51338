"""Edits of files of settings: the entry as wanted, and every other byte as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from flatout.errors import UsageError
from flatout.schema.plan import Block, Edit, Entry, Write
from flatout.system.changes.edit_actions import content_after
from flatout.system.changes.text_encoding import decode


def ini(section: str, key: str, value: str | None, *, is_utf8: bool = False) -> Edit:
    """An edit of one setting."""
    entry = Entry(place=(section, key), value=value)
    return Edit(
        file="a.wslconfig", form="ini", entries=(entry,), encoding="utf-8" if is_utf8 else None
    )


def object_edit(place: str, value: object) -> Edit:
    """An edit of one entry of a JSON file."""
    entry = Entry(place=tuple(place.split(".")), value=value)  # type: ignore[arg-type]
    return Edit(file="daemon.json", form="json", entries=(entry,))


PERSONS = (
    "# Limits of my machine\r\n\r\n[WSL2]\r\nMemory = 4GB   ; was 2\r\nprocessors=4\r\n"
    "\r\n; beta things\r\n[experimental]\r\nautoMemoryReclaim=gradual\r\n"
)
INI_CASES = [
    ("value", PERSONS, ("wsl2", "memory", "12GB"), PERSONS.replace("4GB", "12GB")),
    ("value as it is", PERSONS, ("wsl2", "memory", "4GB"), PERSONS),
    (
        "new key at the end of its section",
        PERSONS,
        ("wsl2", "dnsTunneling", "true"),
        PERSONS.replace("processors=4\r\n", "processors=4\r\ndnsTunneling=true\r\n"),
    ),
    (
        "new section",
        PERSONS,
        ("gpu", "enabled", "true"),
        PERSONS + "\r\n[gpu]\r\nenabled=true\r\n",
    ),
    ("taken out", PERSONS, ("wsl2", "processors", None), PERSONS.replace("processors=4\r\n", "")),
    ("taken out and not there", PERSONS, ("wsl2", "swap", None), PERSONS),
    ("no newline at the end", "[wsl2]\nswap=0", ("wsl2", "memory", "8GB"),
     "[wsl2]\nswap=0\nmemory=8GB"),
    ("no newline, new section", "[wsl2]\nswap=0", ("gpu", "enabled", "true"),
     "[wsl2]\nswap=0\n\n[gpu]\nenabled=true\n"),
    ("section twice", "[wsl2]\nmemory=1GB\n[a]\nb=c\n[wsl2]\nmemory=2GB\n",
     ("wsl2", "memory", "9GB"), "[wsl2]\nmemory=9GB\n[a]\nb=c\n[wsl2]\nmemory=9GB\n"),
    ("key twice", "[wsl2]\nmemory=1GB\nMEMORY=2GB\n", ("wsl2", "memory", None), "[wsl2]\n"),
    ("same key in another section", "[a]\nk=1\n[b]\nk=2\n", ("b", "k", "3"),
     "[a]\nk=1\n[b]\nk=3\n"),
    ("quoted", '[automount]\noptions = "uid=1000"\n', ("automount", "options", '"metadata"'),
     '[automount]\noptions = "metadata"\n'),
    ("empty section", "[boot]\n\n[user]\ndefault=ada\n", ("boot", "systemd", "true"),
     "[boot]\nsystemd=true\n\n[user]\ndefault=ada\n"),
    ("command over two lines", '[boot]\ncommand = "a \\\n b"\n', ("user", "default", "ada"),
     '[boot]\ncommand = "a \\\n b"\n\n[user]\ndefault=ada\n'),
    ("empty file", "", ("wsl2", "memory", "8GB"), "[wsl2]\nmemory=8GB\n"),
    ("comment with the key", "[wsl2]\n#memory=2GB\n", ("wsl2", "memory", "8GB"),
     "[wsl2]\nmemory=8GB\n#memory=2GB\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "change", "after"), [case[1:] for case in INI_CASES], ids=[c[0] for c in INI_CASES]
)
def test_ini_file_is_changed_in_one_place(
    before: str, change: tuple[str, str, str | None], after: str
) -> None:
    assert (content_after(ini(*change), before.encode()) or b"").decode() == after


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.replace("my", "Jos\xe9's").encode("latin-1"),
        lambda text: text.replace("my", "李's").encode("gb18030"),
    ],
    ids=["bom", "utf-16", "utf-16 big", "utf-16 without mark", "latin", "chinese code page"],
)
def test_ini_file_keeps_its_encoding(encode) -> None:  # type: ignore[no-untyped-def]
    assert content_after(ini("wsl2", "memory", "12GB"), encode(PERSONS)) == encode(
        PERSONS.replace("4GB", "12GB")
    )


def test_ini_file_is_recoded_where_that_is_the_fix() -> None:
    content = content_after(
        ini("wsl2", "memory", "12GB", is_utf8=True), b"\xff\xfe" + PERSONS.encode("utf-16-le")
    )
    assert content == PERSONS.replace("4GB", "12GB").encode()


def test_new_file_has_line_ends_of_its_system() -> None:
    assert content_after(ini("wsl2", "memory", "8GB"), None) == b"[wsl2]\r\nmemory=8GB\r\n"
    assert content_after(ini("wsl2", "memory", None), None) is None


@pytest.mark.parametrize(
    "content",
    [b"[wsl2]\nmemory 8GB\n", b"PK\x03\x04\x00\x00zip", b"[wsl2\nmemory=1\n", b"\xff\xfe[\x00w",
     b"[wsl2]\nmemory=1GB \\\nswap=0\n"],
)  # fmt: skip
def test_broken_ini_file_is_refused(content: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        content_after(ini("wsl2", "memory", "8GB"), content)
    assert caught.value.rule == "settings-file-broken"


DAEMON = """{
  "log-driver": "json-file",
  "runtimes" : {
    "kata": {"path": "/opt/kata"}
  },
  "dns": ["1.1.1.1", "8.8.8.8"],
  "max-concurrent-downloads": 3.0e0
}
"""
JSON_CASES = [
    ("value", DAEMON, ("log-driver", "local"), DAEMON.replace('"json-file"', '"local"')),
    ("value as it is", DAEMON, ("dns", ["1.1.1.1", "8.8.8.8"]), DAEMON),
    (
        "new in an inner object",
        DAEMON,
        ("runtimes.nvidia.path", "nvidia-container-runtime"),
        DAEMON.replace(
            '"/opt/kata"}\n',
            '"/opt/kata"},\n    "nvidia": {\n      "path": "nvidia-container-runtime"\n    }\n',
        ),
    ),
    (
        "new at the end",
        DAEMON,
        ("features.cdi", True),
        DAEMON.replace("3.0e0\n", '3.0e0,\n  "features": {\n    "cdi": true\n  }\n'),
    ),
    ("last taken out", DAEMON, ("max-concurrent-downloads", None),
     DAEMON.replace(',\n  "max-concurrent-downloads": 3.0e0', "")),
    ("first taken out", DAEMON, ("log-driver", None),
     DAEMON.replace('"log-driver": "json-file",\n  ', "")),
    ("taken out and not there", DAEMON, ("runtimes.nvidia", None), DAEMON),
    ("on one line", '{"a": 1, "b": {}}', ("b.c", "d"), '{"a": 1, "b": {\n    "c": "d"\n}}'),
    ("one more on one line", '{"a":1}\n', ("b", 2), '{"a":1, "b":2}\n'),
    ("empty object", "{}\n", ("a", True), '{\n    "a": true\n}\n'),
    ("empty file", "", ("a", True), '{\n    "a": true\n}\n'),
    ("windows' line ends", '{\r\n\t"a": 1\r\n}\r\n', ("b", 2),
     '{\r\n\t"a": 1,\r\n\t"b": 2\r\n}\r\n'),
    ("true is not 1", '{"a": 1}', ("a", True), '{"a": true}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "change", "after"), [case[1:] for case in JSON_CASES], ids=[c[0] for c in JSON_CASES]
)
def test_json_file_is_changed_in_one_place(
    before: str, change: tuple[str, object], after: str
) -> None:
    content = (content_after(object_edit(*change), before.encode()) or b"").decode()
    assert content == after
    json.loads(content)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1, // Docker allows none\n"b": 2}', b'{"a": 1,}', b'["a"]', b'{"a": 1, "a": 2}',
        b'{"runtimes": []}', b'{"a": NaN}', b"{'a': 1}", b"log-driver: local", b'{"a": 1} {}',
        b"{" + b'"a":{' * 100_000,
    ],
)  # fmt: skip
def test_broken_json_file_is_refused(content: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        content_after(object_edit("runtimes.nvidia.path", "nvidia-container-runtime"), content)
    assert caught.value.rule == "settings-file-broken"


def block(*lines: str) -> Block:
    """An edit of the block `cuda`."""
    return Block(file="~/.bashrc", name="cuda", lines=lines)


@pytest.mark.parametrize("before", ["", "alias ll='ls -l'\n", "no newline", "a\r\nb\r\n"])
def test_block_goes_in_and_out(before: str) -> None:
    once = content_after(block("export A=1"), before.encode())
    assert once is not None
    newline = "\r\n" if "\r\n" in before else "\n"
    assert f"# >>> flatout: cuda >>>{newline}export A=1{newline}".encode() in once
    assert content_after(block("export A=1"), once) == once
    other = content_after(block("export A=2", "export B=3"), once)
    assert other is not None and other.count(b">>>") == 2 and b"A=1" not in other
    left = content_after(block(), other)
    assert left == (before + (newline if before == "no newline" else "")).encode()


def test_half_a_block_is_refused() -> None:
    for text in ("# >>> flatout: cuda >>>\nexport A=1\n",
                 "# <<< flatout: cuda <<<\n# >>> flatout: cuda >>>\n"):  # fmt: skip
        with pytest.raises(UsageError, match="broken"):
            content_after(block("export A=2"), text.encode())


def test_whole_file_is_written() -> None:
    assert content_after(Write(file="a", text="é\n"), b"other") == "é\n".encode()


def setting(text: str, section: str, key: str) -> str | None:
    """The value of a setting at its last place; None if it has none."""
    found, current = None, ""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.startswith("["):
            current = line.strip("[]")
        elif equals and (current, name) == (section, key):
            found = value.strip()
    return found


_WORDS = some.text("abcdefgh", min_size=1, max_size=6)
_SECTIONS = some.lists(
    some.tuples(_WORDS, some.lists(some.tuples(_WORDS, some.text("xyz 0123", max_size=8)))),
    max_size=4,
)
_ENDS = some.sampled_from(["\n", "\r\n"])


@given(_SECTIONS, _ENDS, _WORDS, _WORDS, some.text("xyz0123", min_size=1, max_size=8))
def test_setting_is_what_was_set(
    sections: list[tuple[str, list[tuple[str, str]]]], end: str, section: str, key: str, value: str
) -> None:
    text = "".join(
        f"[{name}]{end}" + "".join(f"{held}={reported}{end}" for held, reported in settings)
        for name, settings in sections
    )
    after = content_after(ini(section, key, value), text.encode())
    assert after is not None
    reported = decode(after).text
    assert setting(reported, section, key) == value
    assert content_after(ini(section, key, value), after) == after
    others = [(name, held) for name, settings in sections for held, _ in settings]
    for name, held in others:
        if (name, held) != (section, key):
            assert setting(reported, name, held) == setting(text, name, held)
    without = content_after(ini(section, key, None), after)
    assert without is not None and setting(decode(without).text, section, key) is None


_NEW = some.booleans() | some.text(max_size=4)
_VALUES = some.recursive(
    some.booleans() | some.integers() | some.text('ab"\\é{},: ', max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(some.dictionaries(_WORDS, _VALUES, max_size=4), some.sampled_from([None, 1, 2, "\t"]),
       some.lists(_WORDS, min_size=1, max_size=3), _NEW)  # fmt: skip
def test_entry_is_what_was_set(
    whole: dict[str, object], indent: int | str | None, place: list[str], value: object
) -> None:
    expected = json.loads(json.dumps(whole))
    inner = expected
    for key in place[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else None
    action = object_edit(".".join(place), value)
    content = json.dumps(whole, indent=indent).encode()
    if not isinstance(inner, dict):
        with pytest.raises(UsageError):
            content_after(action, content)
        return
    inner[place[-1]] = value
    after = content_after(action, content)
    assert after is not None and json.loads(after) == expected
    assert content_after(action, after) == after
