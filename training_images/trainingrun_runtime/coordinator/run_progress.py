"""What a run has done and lost, how its driver ends, and how it is rated as a sweep's trial."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from trainingrun_protocol.contract import RunContract
from trainingrun_protocol.failure_rules import FailureFacts
from trainingrun_protocol.progress import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RecordKind,
    RunState,
)

from ..known_errors.remedies import MORE_MEMORY
from ..progress.time_accounting import StepReport, TimeAccounting
from ..store.lease import LossHistory
from ..store.loss_documents import LossDocument
from ..store.manifest import Manifest
from ..store.reported_metrics import printable_metrics, shown_metrics
from .rank_comparison import RankPlace

GROWTH_S = 15.0
"""Seconds that a run may stand still for a larger worker group."""


class RunProgress:
    """The time accounting of one driver, with the clock. One lock guards all of it.

    Args:
        contract: the operator's settings of this attempt.
        accounting: of the driver.
    """

    def __init__(self, contract: RunContract, accounting: TimeAccounting) -> None:
        self._lock = threading.Lock()
        self._needed, self._accounting = contract.needed_metrics, accounting
        self._group = self._newest_group = self._resumed_step = 0
        self._has_session = self._has_reported = False  # the code of this group
        self._had_session = False  # the code of a former group
        self._silence: str | None = None  # what to do where the group's code reports nothing
        self._advice: list[str] = []  # what else the group's code should do
        self._saved_alone: tuple[int, tuple[int, ...]] | None = None  # (step, ranks)
        self._not_saved_alone: str | None = None  # why the ranks that were left did not
        self._final_metrics: dict[str, Any] = {}

    def group_started(
        self, world_size: int, resumed_step: int, skipped: list[str], restored_from: str | None
    ) -> int:
        """A worker group begins; returns its number. See `Coordinator.group_started`."""
        with self._lock:
            now = time.time()
            for message in skipped:
                self._accounting.record(now, RecordKind.CHECKPOINT_SKIPPED, message)
            step, ranks = self._saved_alone or (None, ())
            self._group = self._accounting.group_started(
                now,
                world_size,
                resumed_step,
                restored_from,
                saved_by=ranks if step == resumed_step else (),
                not_saved=self._not_saved_alone,
            )
            self._saved_alone = self._not_saved_alone = self._silence = None
            self._advice = []
            self._had_session |= self._has_session
            self._resumed_step, self._has_session, self._has_reported = resumed_step, False, False
            return self._group

    def next_group(self) -> int:
        """A worker, before it has agreed with the others on a checkpoint: number of its group."""
        with self._lock:
            self._newest_group = self._group + 1
            return self._newest_group

    def newest_group(self) -> int:
        """Number of the group whose workers were started last, whether it has begun or not."""
        with self._lock:
            return self._newest_group

    def resumed_step(self) -> int:
        """Step of the checkpoint that the worker group began from; 0: from scratch."""
        with self._lock:
            return self._resumed_step

    def session_began(self, group: int) -> None:
        """Rank 0: the training code has a session, whose reports are the ones that count."""
        with self._lock:
            if group == self._group:
                self._has_session = True
                self._accounting.session_began()

    def reports_nothing(self, group: int, sentence: str) -> None:
        """Rank 0: its function runs for a while without a session; what to do, in a sentence."""
        with self._lock:
            if self._had_session:
                return  # it will have one again
            if group == self._group and not self._has_session and not self._has_reported:
                self._silence = sentence
                self._accounting.runs_unmeasured()

    def advise(self, group: int, sentence: str) -> None:
        """Rank 0: what its code should do to lose less; shown until the group ends."""
        with self._lock:
            if group == self._group:
                self._advice.append(sentence)

    @property
    def trains(self) -> bool:
        """Whether the worker group does steps."""
        with self._lock:
            return self._accounting.state is RunState.TRAINING

    @property
    def has_session(self) -> bool:
        """Whether the code of the worker group has a session."""
        return self._has_session

    def worth_growing(self, workers: int, possible: int) -> bool:
        """Whether more workers save more time until the end than their start takes.

        Code without a session does not tell how much is left; a session does after its first step.
        """
        with self._lock:
            left_s = self._accounting.document(time.time()).seconds_left
            if left_s is None:
                return not self._has_session
        return left_s * (1 - workers / possible) > GROWTH_S

    def stepped(self, report: StepReport) -> None:
        """Steps were done in a session."""
        with self._lock:
            self._has_session |= report.group == self._group
            self._accounting.stepped(report)

    def reported(self, step: int, metrics: dict[str, Any]) -> int | None:
        """A `ray.train.report`, the only report of code without a session; returns the group.

        None: the code has a session, whose reports are earlier and have the duration of the steps.
        """
        with self._lock:
            if self._has_session:
                return None
            self._has_reported = True
            self._accounting.reported(time.time(), step, metrics)
            return self._group

    def saved_alone(self, step: int, ranks: tuple[int, ...]) -> dict[str, Any]:
        """These ranks have saved this step after another one was lost; its metrics, if known."""
        with self._lock:
            self._saved_alone = (step, ranks)
            return self._accounting.metrics_of(step)

    def not_saved_alone(self, reason: str) -> None:
        """Ray's controller: why they have not; a sentence without its period."""
        with self._lock:
            self._not_saved_alone = reason

    def disrupted(
        self,
        kind: RecordKind,
        message: str,
        place: RankPlace | None,
        facts: FailureFacts | None = None,
    ) -> None:
        """A worker group ended before training was done, by the loss of a rank at this place."""
        node, pod = (place.node, place.pod) if place else (None, None)
        with self._lock:
            self._accounting.disrupted(time.time(), kind, message, node, pod, facts)

    def ran_out_of_memory(self, rank: int, place: RankPlace) -> None:
        """The rank that was lost last was ended for want of memory, in a pod that lives on."""
        on = f": pod {place.pod}" if place.pod else ": it"
        message = f"rank {rank} died{on} used more memory than its limit; {MORE_MEMORY}"
        with self._lock:
            self._accounting.ran_out_of_memory(message, place.node or None, place.pod or None)

    def interrupted(self) -> None:
        """Ray's controller: a worker group ended because of the store; no worker was lost."""
        with self._lock:
            self._accounting.interrupted(time.time())

    def loss_history(self) -> LossHistory:
        """The losses of the run until now."""
        with self._lock:
            return self._accounting.history()

    def losses(self, version: int) -> tuple[int, list[LossDocument]]:
        """The driver: the documents of losses that changed since a version, and the one of now."""
        with self._lock:
            return self._accounting.losses_after(version)

    def committed(self, manifest: Manifest, uri: str) -> None:
        """An upload has a manifest now."""
        with self._lock:
            self._accounting.committed(
                LastCheckpoint(uri=uri, step=manifest.step, time=manifest.time)
            )

    def overruled(self, sentences: list[str]) -> None:
        """The driver: settings of the script that are not used, a sentence for each."""
        with self._lock:
            for sentence in sentences:
                self._accounting.record(time.time(), RecordKind.SETTING_OVERRULED, sentence)

    def node_is_slow(self, node: str, sentence: str) -> None:
        """A rank was the slow one on a node again and again."""
        with self._lock:
            self._accounting.record(time.time(), RecordKind.NODE_SLOW, sentence, node=node)

    def failed(self, failure: Failure) -> None:
        """The driver ends the attempt; the first reason is kept."""
        with self._lock:
            self._accounting.failed(time.time(), failure)

    def concluding(self, failure: Failure | None, result: ProgressResult | None) -> None:
        """The driver is about to end so."""
        with self._lock:
            self._accounting.concluding(failure, result)

    def suspended(self) -> None:
        """The driver ends because of a suspend request."""
        with self._lock:
            self._accounting.suspended()

    def finished(self, metrics: dict[str, Any]) -> None:
        """Rank 0: the training's final metrics."""
        with self._lock:
            self._final_metrics = {**self._final_metrics, **metrics}

    def complete(self, result: ProgressResult, step: int) -> ProgressResult:
        """The driver: the result with the last reported metrics, and the final ones on top.

        Args:
            result: with the metrics of the newest checkpoint, if there is one.
            step: of that checkpoint; 0: there is none. A script may report later ones without one.
        """
        with self._lock:
            last = self._accounting.step
            reported = self._accounting.metrics_of(last) if last > step else {}
            metrics = {**(reported or result.metrics), **self._final_metrics}
        return result.model_copy(update={"metrics": printable_metrics(metrics, self._needed)})

    def succeeded(self, result: ProgressResult) -> None:
        """Training is done, and the result is in the bucket."""
        with self._lock:
            self._accounting.succeeded(time.time(), result)

    def document(self, lost_nodes: list[str]) -> Progress:
        """The progress document, without what ranks and others have told."""
        with self._lock:
            document = self._accounting.document(time.time(), lost_nodes)
            told = list(self._advice)
            if self._silence and not self._has_session and not self._has_reported:
                told.append(self._silence)
            update: dict[str, Any] = {"metrics": shown_metrics(document.metrics, self._needed)}
            if document.state in (RunState.STARTING, RunState.TRAINING):
                update["warnings"] = told
        if (result := document.result) is not None:
            few = shown_metrics(result.metrics, self._needed)
            update["result"] = result.model_copy(update={"metrics": few})
        return document.model_copy(update=update)


class StoreErrors:
    """The error of each process whose requests to the store fail, and since when; one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[str, tuple[str, float]] = {}  # reporter -> (latest error, since)

    def storage(self, source: str, error: str | None) -> None:
        """Any process: requests of `source` to the store fail with this error; None: no longer."""
        with self._lock:
            if error is None:
                self._errors.pop(source, None)
            else:
                _, since = self._errors.get(source, (error, time.time()))
                self._errors[source] = (error, since)

    def forget_ranks(self) -> None:
        """The ranks have ended; the new ones report their own."""
        with self._lock:
            for source in [name for name in self._errors if name.startswith("rank ")]:
                del self._errors[source]

    def fields(self) -> dict[str, Any]:
        """Of the progress document: the latest error of the one that waits longest."""
        with self._lock:
            if not self._errors:
                return {}
            error, since = min(self._errors.values(), key=lambda one: one[1])
            return {"storage_error": error, "storage_error_since": since}


class TrialRating:
    """The metric by which trials are compared; each value is replaced whole, without a lock.

    Args:
        metric: its name; None: the run is no trial.
    """

    def __init__(self, metric: str | None) -> None:
        self._metric = metric
        self._paused_at: int | None = None
        self._latest: tuple[int, Any] | None = None

    def begin(self) -> None:
        """A worker group begins."""
        self._paused_at = None

    def rated(self, step: int, value: Any) -> None:
        """Rank 0: the metric of a step."""
        self._latest = (step, value)

    def rate_by(self, step: int, metrics: Mapping[str, Any]) -> None:
        """What was reported of a step, which may have the metric."""
        if self._metric is not None and self._metric in metrics:
            self.rated(step, metrics[self._metric])

    def rating(self) -> tuple[int, Any] | None:
        """The metric as it was last reported, and its step; None: it was not yet."""
        return self._latest

    def paused(self, step: int, value: Any) -> None:
        """Rank 0: this trial ends here, and waits for others; its metric."""
        self._paused_at, self._latest = step, (step, value)

    def fields(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Of the progress document, whose `metrics` these are, of a trial that waits."""
        if self._paused_at is None or self._metric is None or self._latest is None:
            return {}
        rated = {self._metric: self._latest[1]}
        rated |= {name: value for name, value in metrics.items() if name != self._metric}
        return {"paused_at_step": self._paused_at, "metrics": rated}
