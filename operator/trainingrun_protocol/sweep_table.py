"""The trials of a sweep, as the driver reports them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .bounded import Count, Metrics, Name, Sentence, Uri, the_last
from .wire import Wire

MOST_TRIALS = 200
"""Trials in a document, and of a sweep."""


class TrialState(StrEnum):
    """Where a trial of a sweep stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether it is not trained any further."""
        return self in (TrialState.SUCCEEDED, TrialState.STOPPED, TrialState.FAILED)


class TrialRow(Wire):
    """One trial of a sweep."""

    number: Count
    """1, 2, 3 …"""
    state: TrialState = TrialState.PENDING
    """Where it stands."""
    config: Metrics = Field(default_factory=dict)
    """The values of the config that differ from trial to trial."""
    step: Count = 0
    """Steps done."""
    value: float | None = None
    """The metric as it was last reported."""
    checkpoint_uri: Uri | None = None
    """Its newest committed checkpoint."""
    message: Sentence = ""
    """Why it failed."""


class SweepTable(Wire):
    """All trials of a sweep."""

    metric: Name
    """Metric by which they are compared."""
    best: Count | None = None
    """Number of the best trial so far; none: none has reported the metric."""
    trials: Annotated[list[TrialRow], the_last(MOST_TRIALS)] = Field(default_factory=list)
    """Each of them, by number."""
