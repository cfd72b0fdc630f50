"""What the coordinator knows of the worker group that trains; pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from . import standstill
from .rank_comparison import RankComparison
from .standstill import Stand


class Survivors(NamedTuple):
    """What is known of a worker group of which a rank was lost."""

    actors: Mapping[int, Any]
    """Those that note their steps, by rank; a lost one may be among them."""
    saved_step: int
    """The group's newest step in the bucket."""
    without_notes: str
    """Why there is no such actor, if there is none."""


class WorkerGroup:
    """What its ranks have told; the next group begins with nothing.

    Args:
        number: from 1; 0: none has begun yet.
        world_size: number of ranks.
        began: Unix time in seconds.
        resumed_step: step of the checkpoint that it began from; 0: from scratch.
    """

    def __init__(
        self, number: int = 0, world_size: int = 0, began: float = 0.0, resumed_step: int = 0
    ) -> None:
        self.number, self.began, self.world_size = number, began, world_size
        self.resumed_step = resumed_step
        self.has_session = False
        """Whether the training code has a session, whose reports are the ones that count."""
        self.has_reported = False
        """Whether the training code has called `ray.train.report`."""
        self.silence = ""
        """What to do where it does neither for long, in a sentence."""
        self.actors: dict[int, Any] = {}
        """Ray Train's workers, by rank, that can save the last step alone."""
        self.without_notes = "that takes a Session"
        """Why there are none."""
        self.comparison = RankComparison(world_size)
        """What the ranks measure."""
        self._stands: dict[int, Stand] = {}

    @property
    def reports(self) -> bool:
        """Whether it is known what the training code has done."""
        return self.has_session or self.has_reported

    def stands(self, rank: int, stand: Stand | None) -> None:
        """Where a rank has been for a while; None: it moves again."""
        if stand is None:
            self._stands.pop(rank, None)
        else:
            self._stands[rank] = stand

    def findings(
        self, nodes: Mapping[int, str], pods: Mapping[int, str], now: float
    ) -> dict[str, Any]:
        """Fields of the progress document while the group trains.

        Args:
            nodes: Kubernetes nodes of the ranks, where known.
            pods: their pods, where known.
            now: Unix time in seconds.
        """
        stuck = standstill.sentence(self._stands, self.world_size, now)
        found = self.comparison.findings(nodes, pods, now)
        if self.silence and not self.reports:
            found["warnings"] = [self.silence, *found.get("warnings", ())]
        return {"standstill": stuck, **found}
