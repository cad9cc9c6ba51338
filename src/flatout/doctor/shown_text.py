"""What of a line may be shown to others: words that flatout's own rules use, numbers, versions.

An allow-list like that of `redaction`, for text: a name of a person, host, project, container or
package that the rules do not speak of is hidden, wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flatout.doctor.redaction import LIBRARY, shared_path
from flatout.doctor.rule import Rule
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.finding import Evidence, Finding

HIDDEN_WORD = "…"

# Words of the evidence that is built of facts, beside those of the rules' pages.
_OWN = """
a active an and are asks at be before bound build built busy by card cards cases center checked code
compile compute cpu data driver drivers error errors failed for found free from gpu gpus group has
have held home in installed instance interpreter is it its kernel killed least limit line lists
loaded loader made memory metadata mode module modules most name needs no none not of off on one or
other own page path processes project python read runs said sees set share since small start still
system takes than that the there this through tmp to total up used uses version versions was were
when with without files
"""
_WORD = re.compile(r"[A-Za-z_][A-Za-z_'+.-]*[A-Za-z_+]|[A-Za-z]")
# Between tokens: blanks and the signs that programs put around what they tell.
_BETWEEN = re.compile(r"(\s+|[()\[\]{}<>'\"`,;=|*]+|:(?=\s|$)|(?<=[\w)])[.!?](?=\s|$))")
_NUMBER = re.compile(
    r"[-+]?\d{1,8}(?:\.\d{1,6})?(?:%|[KMGT]i?B|[kmgt]b|ms|us|s|x|W|C|MHz)?|0x[0-9a-fA-F]{1,4}"
    r"|\d{1,4}(?:\.\d{1,4}){2}(?:\.\d{4,6})?(?:\+(?:cpu|cu\d{2,3}))?|\d{4}-\d\d-\d\d|\d\d:\d\d(?::\d\d)?"
)
_NAMES = re.compile(
    # Makers' and programs' own names for errors, builds, cards and files.
    r"sm_\d{2,3}a?|compute_\d{2,3}|cu\d{2,3}|cp3\d{1,2}|WinError|0x[0-9a-fA-F]{1,8}"
    r"|(?:RTX|GTX|TITAN|Tesla|GeForce|Quadro|NVIDIA)|[AHLVPTB]\d{1,3}[A-Z]?|\d{4}(?:Ti)?|\d{2}GB"
    rf"|{LIBRARY}|lib(?:stdc\+\+|gomp|omp|iomp5)\.so[\d.]{{0,12}}"
)
# Names of CUDA's and Python's own that are put together: each part must be known, too, since
# somebody's name may be glued to the rest.
_GLUED = re.compile(
    r"(?:CUDA|CUDNN|CUBLAS|NCCL|NVML|cuda|cudnn|cublas|hip|HIP|WSL|Wsl)(?P<parts>[A-Za-z_]{0,120})"
    r"|(?P<error>[A-Z][A-Za-z]{2,40}Error)"
)
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_OWN_PARTS = frozenset(
    [
        "attribute",
        "assertion",
        "broadcast",
        "buffer",
        "context",
        "count",
        "destroy",
        "driver",
        "event",
        "exception",
        "file",
        "find",
        "free",
        "get",
        "handle",
        "illegal",
        "import",
        "index",
        "initialization",
        "initialize",
        "initialized",
        "insufficient",
        "invalid",
        "key",
        "launch",
        "lookup",
        "malloc",
        "module",
        "not",
        "os",
        "peer",
        "pipe",
        "property",
        "properties",
        "ready",
        "runtime",
        "set",
        "status",
        "stream",
        "sync",
        "synchronize",
        "syntax",
        "type",
        "value",
        "zero",
        "division",
        "address",
        "argument",
        "arguments",
        "connection",
        "timeout",
    ]
)
# Phone, account and card numbers that are written in groups.
_GROUPS = re.compile(r"(?<![\w.])\+?\d{2,6}(?:[ \t-]\d{2,6}){2,}(?![\w.])")
_LEAST_DIGITS = 9


def shown_to_others(found: Diagnosis, rules: Sequence[Rule]) -> Diagnosis:
    """The findings as others may see them: without names and paths of anybody in their evidence."""
    return Shown(rules).diagnosis(found)


class Shown:
    """Shows lines; made of the words that rules use."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        texts = [_OWN]
        for rule in rules:
            texts.append(rule.page)
            texts += [text for one in rule.signatures for text in one.texts]
        self._words = {word.lower() for text in texts for word in _WORD.findall(text)}

    def line(self, text: str) -> str:
        """The line with a sign in place of every token that may tell whose it is."""
        text = _GROUPS.sub(_hidden_if_long, text)
        return "".join(
            part if not part or _BETWEEN.fullmatch(part) else self._token(part)
            for part in _BETWEEN.split(text)
        )

    def diagnosis(self, found: Diagnosis) -> Diagnosis:
        """The findings with their evidence as others may see it."""
        findings = tuple(self.finding(one) for one in found.findings)
        return msgspec.structs.replace(found, findings=findings)

    def finding(self, one: Finding) -> Finding:
        """A finding with its evidence as others may see it."""
        evidence = tuple(
            msgspec.structs.replace(part, text=self.line(part.text))
            if isinstance(part, Evidence)
            else self.line(part)
            for part in one.evidence
        )
        # A plan names files and interpreters of this machine: it is for `--fix` alone.
        fixes = tuple(msgspec.structs.replace(fix, plan=None) for fix in one.fixes)
        return msgspec.structs.replace(one, evidence=evidence, fixes=fixes)

    def _is_known(self, text: str) -> bool:
        return _WORD.fullmatch(text) is not None and text.lower() in self._words

    def _is_glued_of_known(self, text: str) -> bool:
        found = _GLUED.fullmatch(text)
        if not found:
            return False
        parts = _PART.findall(found["error"] or found["parts"])
        return all(part.lower() in self._words or part.lower() in _OWN_PARTS for part in parts)

    def _token(self, text: str) -> str:
        if _NUMBER.fullmatch(text) or _NAMES.fullmatch(text):
            return text
        if self._is_known(text) or self._is_glued_of_known(text):
            return text
        if "/" in text or "\\" in text:
            # `Driver/library` are two words, no path.
            words = text.split("/")
            is_pair = len(words) == 2 and all(self._is_known(word) for word in words)
            return text if is_pair else shared_path(text) or HIDDEN_WORD
        head, separator, rest = text.partition(":")
        if separator and head:
            # `RuntimeError:CUDA`, `torch:2.9`: each side for itself.
            return f"{self._token(head)}:{self._token(rest) if rest else ''}"
        return HIDDEN_WORD


def _hidden_if_long(found: re.Match[str]) -> str:
    num_digits = sum(letter.isdigit() for letter in found[0])
    return HIDDEN_WORD if num_digits >= _LEAST_DIGITS else found[0]
