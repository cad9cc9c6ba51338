"""What came out of a run beside its metrics."""

from __future__ import annotations

import msgspec

from flatout.nouns.class_report import ClassReport, class_report
from flatout.nouns.lines import Classified, Generated


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Confusions of the validation whose weights are kept, or of the last; the last samples."""

    confusions: tuple[Classified, ...]
    samples: Generated | None

    @property
    def reports(self) -> list[ClassReport]:
        """The scores of the classes, for each of the confusions."""
        return [class_report(line) for line in self.confusions]
