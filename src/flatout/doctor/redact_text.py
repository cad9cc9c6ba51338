"""Redaction of lines: only words of flatout's own rules, numbers and versions may be shared.

An allow-list like that of `redaction`, for text: any name of a user, host, project, container or
package that the rules do not mention is hidden, wherever it occurs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flatout.doctor.model.diagnosis import Diagnosis
from flatout.doctor.redaction import LIBRARY, shared_path
from flatout.doctor.rule import Rule
from flatout.doctor.rule_page import page_of
from flatout.schema.finding import Evidence, Finding

HIDDEN_WORD = "…"

# Words of evidence built from facts, and common words that programs print, in addition to those of
# the rules' pages: rewording a page must not hide more of the evidence.
_OWN = """
a aborts active agree an and apart are ask asked asks at be before begin bound build built busy by
card cards cases center checked choice choose chosen close clusters code compile completions compute
computes cost cpu damaged data dead driver drivers enter enters error errors exclude expect failed
files fits for found free from go good gpu gpus group has have held higher home in inductor inner
installed instance interpreter is it its kept kernel killed kind least letter limit line lists
loaded loader looked made mamba mean memory metadata middle miss misses mode module modules most
name needs no none not of off on one or other own page path piece place pointers printed processes
project pulls python quoted raised read room runs said seen sees sent set share since small stand
start still system taken takes than that the there this through tmp to total trace turned typed
understood up used uses version versions want wanted was well went were when with within without
word words written wrong
"""
_WORD = re.compile(r"[A-Za-z_][A-Za-z_'+.-]*[A-Za-z_+]|[A-Za-z]")
# Between tokens: blanks and the punctuation that programs put around values.
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
# Compound names of CUDA and Python: each part must be known, too, since a user's name may be
# glued to the rest.
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


def shown_to_others(diagnosis: Diagnosis, rules: Sequence[Rule]) -> Diagnosis:
    """The findings as others may see them: without personal names and paths in their evidence."""
    return RedactedText(rules).diagnosis(diagnosis)


class RedactedText:
    """Redacts lines, by the words that rules use."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        texts = [_OWN]
        for rule in rules:
            texts.append(page_of(rule))
            texts += [text for signature in rule.signatures for text in signature.texts]
        self._words = {word.lower() for text in texts for word in _WORD.findall(text)}

    def line(self, text: str) -> str:
        """The line with a placeholder for every token that may identify its owner."""
        text = _GROUPS.sub(_hidden_if_long, text)
        return "".join(
            part if not part or _BETWEEN.fullmatch(part) else self._token(part)
            for part in _BETWEEN.split(text)
        )

    def diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        """The findings with their evidence as others may see it."""
        findings = tuple(self.finding(finding) for finding in diagnosis.findings)
        return msgspec.structs.replace(diagnosis, findings=findings)

    def finding(self, finding: Finding) -> Finding:
        """A finding with its evidence as others may see it."""
        evidence = tuple(
            msgspec.structs.replace(part, text=self.line(part.text))
            if isinstance(part, Evidence)
            else self.line(part)
            for part in finding.evidence
        )
        # A plan names files and interpreters of this machine: only `--fix` uses it.
        fixes = tuple(msgspec.structs.replace(fix, plan=None) for fix in finding.fixes)
        return msgspec.structs.replace(finding, evidence=evidence, fixes=fixes)

    def _is_known(self, text: str) -> bool:
        return _WORD.fullmatch(text) is not None and text.lower() in self._words

    def _is_glued_of_known(self, text: str) -> bool:
        match = _GLUED.fullmatch(text)
        if not match:
            return False
        parts = _PART.findall(match["error"] or match["parts"])
        return all(part.lower() in self._words or part.lower() in _OWN_PARTS for part in parts)

    def _token(self, text: str) -> str:
        if _NUMBER.fullmatch(text) or _NAMES.fullmatch(text):
            return text
        if self._is_known(text) or self._is_glued_of_known(text):
            return text
        if "/" in text or "\\" in text:
            # `Driver/library` is two words, not a path.
            words = text.split("/")
            is_pair = len(words) == 2 and all(self._is_known(word) for word in words)
            return text if is_pair else shared_path(text) or HIDDEN_WORD
        head, separator, rest = text.partition(":")
        if separator and head:
            # `RuntimeError:CUDA`, `torch:2.9`: each side for itself.
            return f"{self._token(head)}:{self._token(rest) if rest else ''}"
        return HIDDEN_WORD


def _hidden_if_long(match: re.Match[str]) -> str:
    num_digits = sum(letter.isdigit() for letter in match[0])
    return HIDDEN_WORD if num_digits >= _LEAST_DIGITS else match[0]
