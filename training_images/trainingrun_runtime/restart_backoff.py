"""How often an attempt begins again by itself: pure counting of worker groups without progress.

Progress is a newer committed checkpoint and nothing else: a crash that comes at another step each
time would go on for ever if steps counted.
"""

from dataclasses import dataclass

MAX_GROUPS_WITHOUT_CHECKPOINT = 10
"""Groups in a row that may end without a newer checkpoint before the attempt is given up. Ray would
try for ever; a fresh attempt on other nodes has better odds."""
MAX_STORAGE_S = 3600.0
"""Seconds for which groups may end, one after the other, because a store of the training code's own
does not answer."""
LONGEST_WAIT_S = 30.0


@dataclass
class Restarts:
    """The count of one attempt; each method answers with seconds to wait, None: give up."""

    without_checkpoint: int = 0
    """Groups in a row that ended without a newer checkpoint, for want of storage not counted."""
    _commits: int = 0
    _for_storage: int = 0
    _storage_since: float | None = None

    def after_loss(self, commits: int, at_once: bool) -> float | None:
        """A group ended because something was lost.

        Args:
            commits: Checkpoints that this driver has committed in all.
            at_once: There is nothing to wait for, as after a notice.
        """
        self._see(commits)
        self.without_checkpoint += 1
        if self.without_checkpoint >= MAX_GROUPS_WITHOUT_CHECKPOINT:
            return None
        return 0.0 if at_once else _wait(self.without_checkpoint)

    def for_storage(self, commits: int, now: float, limit_s: float) -> float | None:
        """A group ended because storage did not do what it was asked.

        Args:
            commits: Checkpoints that this driver has committed in all.
            now: Seconds on any clock that only grows.
            limit_s: Seconds for which that may go on.
        """
        self._see(commits)
        self._for_storage += 1
        if self._storage_since is None:
            self._storage_since = now
        if now - self._storage_since >= limit_s:
            return None
        return _wait(self._for_storage + 1)

    def _see(self, commits: int) -> None:
        if commits > self._commits:
            self._commits = commits
            self.without_checkpoint = self._for_storage = 0
            self._storage_since = None


def _wait(count: int) -> float:
    """The first restart is at once: most losses are single ones. Then 1, 2, 4 … seconds."""
    return 0.0 if count <= 1 else float(min(2 ** (count - 2), LONGEST_WAIT_S))
