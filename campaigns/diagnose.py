"""How often `flatout explain` names the true cause of recorded failures.

    python3 campaigns/diagnose.py CASES [--noise 5000 | --cut] [--half a] [--failures]

CASES is a folder of folders, each with `input.txt` and `case.yaml` (fields `cause`,
`also_acceptable`, `decidable`, `family`, `answer`; one line each), or of tables as in
tests/cases/threads. Tables are split into two halves by source: fix rules with one half, score them
with the other. Top-1: the first finding is the cause or an acceptable one; top-3: one of the first
three is. A finding with severity error where the cause is `none` is a false alarm. `*.log` files in
the folder are healthy. `--noise N` puts each input into N lines of ordinary output; `--cut` leaves
only the first line that the diagnosis shows as evidence for the cause. The calibration compares how
certain the first finding says it is with how often it is right.
"""

from __future__ import annotations

import argparse
import hashlib
import operator
import random
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.doctor.diagnose import case_from_text, diagnose
from flatout.doctor.ruleset import shipped_rules
from flatout.schema.finding import Evidence

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import Measurement, measurement, read_machine, write_result
from support.log_noise import noise_line

RULESET = shipped_rules()

RESULTS = Path(__file__).with_name("results")
SEED = 20261121


@dataclass(frozen=True)
class RecordedCase:
    """A recorded failure and its cause."""

    name: str
    text: str
    causes: tuple[str, ...]
    is_healthy: bool
    decidable: str
    family: str
    answer: str
    half: str = "-"


@dataclass(frozen=True)
class Result:
    """The diagnosis of a case.

    findings: rule ids. alarms: those with severity error. certainty: of the first finding.
    """

    case: RecordedCase
    findings: tuple[str, ...]
    alarms: tuple[str, ...]
    elapsed_s: float
    certainty: str = "silent"

    def is_right(self, depth: int) -> bool:
        """Whether the cause is among the first findings; for a healthy machine, no errors."""
        if self.case.is_healthy:
            return not self.alarms
        return any(rule in self.case.causes for rule in self.findings[:depth])


def read_cases(folder: Path) -> Iterator[RecordedCase]:
    """The cases of a folder, by name."""
    for path in sorted(folder.glob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield RecordedCase(
            name=path.name, text=text, causes=("none",), is_healthy=True, decidable="yes",
            family="healthy", answer="healthy",
        )  # fmt: skip
    for tables in sorted(folder.glob("*.toml")):
        yield from _tabled(tables)
    for path in sorted(folder.glob("*/case.yaml")):
        fields = dict(
            line.split(": ", 1)
            for line in path.read_text(encoding="utf-8").splitlines()
            if ": " in line
        )
        listed = fields.get("also_acceptable", "[]").strip("[] ").split(",")
        labels = (fields["cause"].strip(), *(label.strip(" \"'") for label in listed))
        yield RecordedCase(
            name=path.parent.name,
            text=(path.parent / "input.txt").read_text(encoding="utf-8", errors="replace"),
            causes=tuple(label.replace("_", "-") for label in labels if label),
            is_healthy=labels[0] == "none",
            decidable=fields.get("decidable", "yes").strip(" \"'"),
            family=fields.get("family", "?").strip(),
            answer=fields.get("answer", "?").strip(),
        )


def _tabled(path: Path) -> Iterator[RecordedCase]:
    for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
        digest = hashlib.sha256(case["source"].encode()).digest()
        yield RecordedCase(
            name=case["source"].removeprefix("https://github.com/"),
            text=case["text"],
            causes=(case["cause"], *case.get("also", ())),
            is_healthy=case["cause"] == "none",
            decidable=case["decidable"],
            family=path.stem,
            answer="?",
            half="ab"[digest[0] % 2],
        )


def noisy(text: str, num_lines: int, draw: random.Random) -> str:
    """The text in one piece at a random place in that many lines of noise."""
    lines = [noise_line(draw) for _ in range(num_lines)]
    at = draw.randrange(num_lines + 1)
    return "\n".join([*lines[:at], text, *lines[at:]])


def judge(case: RecordedCase, text: str) -> Result:
    """Diagnoses a text."""
    began = time.perf_counter()
    found = diagnose(case_from_text([text.encode()], RULESET), RULESET).findings
    return Result(
        case=case,
        findings=tuple(one.rule for one in found),
        alarms=tuple(one.rule for one in found if one.severity == "error"),
        elapsed_s=time.perf_counter() - began,
        certainty=found[0].certainty if found else "silent",
    )


def cut(case: RecordedCase) -> str:
    """The line that is shown as evidence for the cause; the whole text if there is none."""
    found = diagnose(case_from_text([case.text.encode()], RULESET), RULESET).findings
    lines = [
        part.text
        for finding in found
        if finding.rule in case.causes
        for part in finding.evidence
        if isinstance(part, Evidence) and (part.where or "").startswith("line ")
    ]
    return lines[0] if lines else case.text


def score(members: Sequence[Result]) -> dict[str, int]:
    """How many causes were named, and how many healthy cases raised an alarm."""
    sick = [one for one in members if not one.case.is_healthy]
    return {
        "cases": len(members),
        "with_a_cause": len(sick),
        "top_1": sum(one.is_right(1) for one in sick),
        "top_3": sum(one.is_right(3) for one in sick),
        "false_alarms": sum(bool(one.alarms) for one in members if one.case.is_healthy),
    }


def scores(results: Sequence[Result]) -> dict[str, dict[str, dict[str, int]]]:
    """Scores by each field of the cases, without the names of the cases."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key in ("family", "decidable", "answer"):
        names = sorted({getattr(one.case, key) for one in results})
        found[key] = {
            name: score([one for one in results if getattr(one.case, key) == name])
            for name in names
        }
    return found


def measured(results: Sequence[Result], num_noise: int) -> list[Measurement]:
    """The shares named: of all cases with a cause, of decidable ones, of those in threads."""
    sick = [one for one in results if not one.case.is_healthy]
    groups = {
        "all": sick,
        "decidable": [one for one in sick if one.case.decidable == "yes"],
        "in_thread": [one for one in sick if one.case.answer == "in_thread"],
    }
    return [
        measurement(
            f"top-{depth} of {name}",
            "share",
            (sum(one.is_right(depth) for one in members) / max(1, len(members)),),
            {"cases": len(members), "lines_of_noise": num_noise},
        )
        for name, members in groups.items()
        for depth in (1, 3)
    ]


def calibration(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    """By the certainty of the first finding: how many cases, and how many of them are right.

    A healthy case counts as right if it raised no alarm.
    """
    return {
        certainty: {
            "cases": len(members),
            "right": sum(one.is_right(1) for one in members),
            "of_those_decidable": sum(one.case.decidable == "yes" for one in members),
            "right_of_those_decidable": sum(
                one.is_right(1) for one in members if one.case.decidable == "yes"
            ),
        }
        for certainty in ("decided", "likely", "possible", "silent")
        if (members := [one for one in results if one.certainty == certainty])
    }


def calibration_table(results: Sequence[Result]) -> Iterator[str]:
    """The calibration, for people."""
    yield f"{'first finding says':<24}{'cases':>7}{'right':>9}"
    for certainty, counts in calibration(results).items():
        share = counts["right"] / counts["cases"]
        yield f"{certainty:<24}{counts['cases']:>7}{share:9.1%}"
    wrong = [
        one.case.name
        for one in results
        if one.certainty == "decided" and not one.is_right(1) and not one.case.is_healthy
    ]
    yield f"{'wrong but decided':<24}{len(wrong):>7}   {', '.join(wrong)}".rstrip()


def table(title: str, results: Sequence[Result], key: str) -> Iterator[str]:
    """Scores by one field of the cases."""
    yield f"{title:<24}{'cases':>7}{'top-1':>9}{'top-3':>9}{'false alarms':>14}"
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(getattr(result.case, key), []).append(result)
    for name, members in sorted(groups.items()):
        sick = [one for one in members if not one.case.is_healthy]
        alarms = sum(bool(one.alarms) for one in members if one.case.is_healthy)
        shares = [
            f"{sum(one.is_right(depth) for one in sick) / len(sick):9.1%}" if sick else " " * 9
            for depth in (1, 3)
        ]
        yield f"{name:<24}{len(members):>7}{shares[0]}{shares[1]}{alarms:>14}"


def report(results: Sequence[Result]) -> Iterator[str]:
    """All tables."""
    sick = [one for one in results if not one.case.is_healthy]
    decidable = [one for one in sick if one.case.decidable == "yes"]
    in_thread = [one for one in sick if one.case.answer == "in_thread"]
    yield from table("family", results, "family")
    yield ""
    yield from table("decidable", results, "decidable")
    yield ""
    if any(one.case.half != "-" for one in results):
        yield from table("half", results, "half")
        yield ""
    groups = (("all with a cause", sick), ("decidable", decidable), ("in_thread", in_thread))
    for name, members in groups:
        right = [sum(one.is_right(depth) for one in members) for depth in (1, 3)]
        count = max(1, len(members))
        yield (
            f"{name:<24}{len(members):>7}{right[0] / count:9.1%}{right[1] / count:9.1%}"
            f"   ({right[0]} and {right[1]} of {len(members)})"
        )
    healthy = [one for one in results if one.case.is_healthy]
    yield f"{'false alarms':<24}{sum(bool(one.alarms) for one in healthy):>7} of {len(healthy)}"
    yield from ("", *calibration_table(results), "")
    slowest = max((one.elapsed_s for one in results), default=0.0)
    yield f"{'slowest':<24}{slowest * 1000:>7.0f} ms"


def failures(results: Sequence[Result]) -> Iterator[str]:
    """Every case whose first finding is not its cause."""
    for one in results:
        if not one.is_right(1):
            wanted = f"{one.case.causes[0]} ({one.case.decidable})"
            found = one.alarms if one.case.is_healthy else one.findings[:4]
            yield f"{one.case.half} {one.case.name}: {wanted} <- {', '.join(found) or '-'}"


def main(arguments: Sequence[str]) -> int:
    """Prints the scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--noise", type=int, default=0, metavar="LINES")
    parser.add_argument("--cut", action="store_true", help="only the decisive line of each case")
    parser.add_argument("--half", choices=("a", "b"), help="only this half of the tables")
    parser.add_argument("--name", help="name of the result file (default: diagnose...)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument(
        "--failures", action="store_true", help="list the cases that were diagnosed wrongly"
    )
    asked = parser.parse_args(arguments)
    draw = random.Random(SEED)
    shown = cut if asked.cut else operator.attrgetter("text")
    results = [
        judge(case, noisy(case.text, asked.noise, draw) if asked.noise else shown(case))
        for case in read_cases(asked.cases)
        if asked.half is None or case.half in (asked.half, "-")
    ]
    if not results:
        print(f"no cases in {asked.cases}", file=sys.stderr)
        return 2
    print("\n".join([*report(results), *(failures(results) if asked.failures else ())]))
    kind = f"-noise-{asked.noise}" if asked.noise else "-cut" if asked.cut else ""
    name = asked.name or f"diagnose{kind}"
    found = measured(results, asked.noise)
    more = {**scores(results), "calibration": {"certainty": calibration(results)}}
    print(write_result(name, read_machine(), found, more, asked.out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
