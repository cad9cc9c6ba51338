"""Refuses a .pt2 file with which torch would run code of the file's author.

torch 2.13 does so in several ways (`export/pt2_archive/_package.py`, `_export/serde/serialize.py`):
it unpickles weights and constants that are marked so, loads compiled libraries, evaluates formulas
of sizes (SymPy's `sympify`), imports the modules of enumerations, calls any function of torch that
a node names (`torch.os.system`), and builds Python from the names of inputs. Whatever is not known
to be harmless is refused here, before torch opens the file.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from flatout.errors import RunFailed

# Where in an archive torch keeps what it reads.
_PLAIN = (
    "archive_format", "archive_version", "byteorder", ".data/", ".format_version",
    ".storage_alignment", "version", "data/extra_files/", "extra/", "models/", "data/weights/",
    "data/constants/", "data/sample_inputs/",
)  # fmt: skip
_CONFIGS = ("_weights_config.json", "_constants_config.json")
_NAME = re.compile(r"[\w.@-]*")
# Operators on tensors, but the one that maps a file; operators on sizes.
_TARGET = re.compile(
    r"torch\.ops\.(?:aten|prims|higher_order)\.(?!from_file)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?"
    r"|_operator\.(?:eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_"
    r"|lshift|rshift|getitem)"
    r"|math\.(?:trunc|ceil|floor|sqrt)|torch\._?sym_[a-z]+"
)
# Texts that are not read as code: arguments of operators, and guards, which are not asked for
# (`program_model.py`).
_TEXTS = ("as_string", "as_strings", "torch_version", "guards_code")
# Called on formulas: classes of SymPy, and nothing else.
_FUNCTION = re.compile(r"[A-Z]\w*")
_PARTS = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Name, ast.Constant,
    ast.Call, ast.keyword, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip


class _NotSafeError(Exception):
    """Says what is not known to be harmless."""


def check_archive(path: Path) -> None:
    """Refuses an archive with more than tensors and a graph of known operators.

    Raises:
        RunFailed: exported-file-not-safe.
        Exception: it is no such archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len({name.lower() for name in names}) < len(names):
                # Of two files with one name, torch may read the other one.
                raise _NotSafeError("two files in it have the same name")
            for name in names:
                _check_file(archive, name)
    except _NotSafeError as error:
        raise RunFailed(
            "exported-file-not-safe",
            f"{path} is not loaded, because it could run any code.",
            because=str(error),
            fix="export the run again: flatout export RUN --to pt2; or serve the run itself",
        ) from error


def _check_file(archive: zipfile.ZipFile, name: str) -> None:
    inner = name.lower().partition("/")[2]
    if not inner.startswith(_PLAIN):
        raise _NotSafeError(f"it contains {name}")
    if inner.startswith("models/"):
        _check_graph(json.loads(archive.read(name)))
    elif inner.startswith(("data/weights/", "data/constants/")):
        if inner.endswith(".pt"):
            raise _NotSafeError(f"{name} is pickled")
        if inner.endswith(_CONFIGS):
            for payload, entry in json.loads(archive.read(name))["config"].items():
                kind = entry["path_name"].rpartition("/")[2]
                if entry["use_pickle"] is not False or not kind.startswith(("weight_", "tensor_")):
                    raise _NotSafeError(f"{payload} is pickled")


def _check_graph(value: Any, key: str = "") -> None:
    """Checks everything that torch reads in a graph; key: of the value in its object."""
    if isinstance(value, dict):
        for name, part in value.items():
            if key == "metadata" and isinstance(part, str):
                # For people, such as where in the source an operator was called.
                continue
            if not _NAME.fullmatch(name):
                raise _NotSafeError(f"it has the name {name[:80]}")
            _check_graph(part, name)
    elif isinstance(value, list):
        for part in value:
            _check_graph(part, key)
    elif isinstance(value, str) and key not in _TEXTS:
        _check_text(value, key)


def _check_text(text: str, key: str) -> None:
    if key in ("target", "as_operator"):
        is_safe = _TARGET.fullmatch(text) is not None
    elif key == "expr_str":
        is_safe = _is_formula(text)
    elif key in ("in_spec", "out_spec"):
        # The layout of nested inputs, in JSON.
        is_safe = "__enum__" not in text and "\\" not in text.replace('\\"', "")
    else:
        is_safe = _NAME.fullmatch(text) is not None
    if not is_safe:
        raise _NotSafeError(f"it has the {key or 'text'} {text[:80]}")


def _is_formula(text: str) -> bool:
    """Whether it is arithmetic, as SymPy's srepr prints it: `Add(Symbol('s0'), Integer(1))`."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(part, _PARTS) and _is_harmless(part) for part in ast.walk(tree))


def _is_harmless(part: ast.AST) -> bool:
    if isinstance(part, ast.Call):
        return isinstance(part.func, ast.Name) and bool(_FUNCTION.fullmatch(part.func.id))
    # SymPy evaluates texts: one that is a name or a number calls nothing.
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        return re.fullmatch(r"[\w.+-]*", part.value) is not None
    return True
