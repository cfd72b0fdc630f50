"""How often and when a worker group is restarted within an attempt; pure.

Only a newer committed checkpoint counts as progress: with steps, a crash at a different step each
time would be retried without end.
"""

from dataclasses import dataclass

MAX_GROUPS_WITHOUT_CHECKPOINT = 10
"""Groups in a row that may end without a newer checkpoint before the attempt fails. Ray would
retry without end; a new attempt may run on other nodes."""
MAX_STORAGE_S = 3600.0
"""Seconds for which groups in a row may end because a store that the training code itself uses does
not answer."""
LONGEST_WAIT_S = 30.0


@dataclass
class RestartBackoff:
    """The counters of one attempt. Methods return seconds to wait; None: end the attempt."""

    without_checkpoint: int = 0
    """Groups in a row that ended without a newer checkpoint; storage errors do not count."""
    _commits: int = 0
    _for_storage: int = 0
    _storage_since: float | None = None

    def after_loss(self, commits: int, at_once: bool) -> float | None:
        """A worker group ended because a worker was lost.

        Args:
            commits: Checkpoints that this driver has committed in all.
            at_once: Restart without a wait, as after a preemption notice.
        """
        self._reset_on_commit(commits)
        self.without_checkpoint += 1
        if self.without_checkpoint >= MAX_GROUPS_WITHOUT_CHECKPOINT:
            return None
        return 0.0 if at_once else _wait(self.without_checkpoint)

    def for_storage(self, commits: int, now: float, limit_s: float) -> float | None:
        """A worker group ended because of a storage error.

        Args:
            commits: Checkpoints that this driver has committed in all.
            now: Seconds of a monotonic clock.
            limit_s: Seconds after which the attempt ends.
        """
        self._reset_on_commit(commits)
        self._for_storage += 1
        if self._storage_since is None:
            self._storage_since = now
        if now - self._storage_since >= limit_s:
            return None
        return _wait(self._for_storage + 1)

    def _reset_on_commit(self, commits: int) -> None:
        if commits > self._commits:
            self._commits = commits
            self.without_checkpoint = self._for_storage = 0
            self._storage_since = None


def _wait(count: int) -> float:
    """0 s for the first restart, since most losses are single ones; then 1, 2, 4 … seconds."""
    return 0.0 if count <= 1 else float(min(2 ** (count - 2), LONGEST_WAIT_S))
