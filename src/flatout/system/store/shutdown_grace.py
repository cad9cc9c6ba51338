"""The time for ranks after one of them has ended, so that no work is lost and none hangs."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.system.clock import elapsed_s
from flatout.system.process_env import ranks_limit_s
from flatout.system.store.run_claim import claimed
from flatout.system.store.run_folder import RunFolder

# After one rank has failed, the others notice by themselves, and rank 0 reports it. After rank 0
# has
# finished, the others have nothing left to do.
_GRACE_S = 20.0
# Where it was rank 0 itself that has failed, no rank is left to report it.
_GRACE_WITHOUT_FIRST_S = 5.0


class ShutdownGrace:
    """Says when the ranks that have not ended should be ended.

    Rank 0 may be in the middle of a checkpoint, or of a validation: as long as it holds the run's
    lock, it is waited for as ranks wait for each other. That holds once it trains; before, there is
    nothing to lose.

    Args:
        folder: of the run, in which no one trains yet.

    Raises:
        UsageError: bad-setting.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._limit_s = ranks_limit_s()
        self._before = claimed(folder.writer)
        self._since_s: float | None = None

    def is_over(self, codes: Mapping[int, int]) -> bool:
        """Whether those that have not ended had time enough.

        Args:
            codes: how the others have ended, by their numbers; of launchers, the first with rank 0,
                likewise.
        """
        if 0 not in codes and not any(codes.values()):
            return False
        if self._since_s is None:
            self._since_s = elapsed_s()
        waited_s = elapsed_s() - self._since_s
        grace_s = _GRACE_WITHOUT_FIRST_S if codes.get(0) else _GRACE_S
        return waited_s > grace_s and (waited_s > self._limit_s or not self._is_trained())

    def _is_trained(self) -> bool:
        """Whether rank 0 works: it may do so still where who has started it has gone."""
        is_claimed = claimed(self._folder.writer) != self._before
        return is_claimed and self._folder.lock().is_taken()
