"""Whether a failed worker group is replaced within the attempt.

Ray counts every lost worker against one budget. Here a lost worker is always replaced in place, and
only an error of the user's own code ends the attempt: the operator, whose counters outlive this
process, then decides about a retry. Only a newer committed checkpoint counts as progress: with
steps, a crash at a different step each time would be retried without end.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.train import FailureConfig, TrainingFailedError

from trainingrun_protocol.contract import MAX_GROUPS_WITHOUT_CHECKPOINT, ContractTrial
from trainingrun_protocol.failure_rules import ContractRule, FailureFacts
from trainingrun_protocol.progress import MOST_LAST_LINES, Failure, Hang, RecordKind

from ..error_text import without_secrets
from ..known_errors.failure_causes import ClassifiedFailure, FailureCause, classify
from ..ray_internals import nodes
from ..ray_internals.training import FailureDecision, FailurePolicy
from ..store import manifest
from ..store.bucket import Bucket
from ..store.kept_output import Source
from ..store.storage_errors import StorageError
from ..store.storage_retry import limit_s
from ..survivors import survivors
from . import failure_rules, last_lines
from .failure_rules import Verdict
from .trial_budget import TrialBudget

MAX_STORAGE_S = 3600.0
"""Seconds for which groups in a row may end because a store that the training code itself uses does
not answer, and none gets farther than the one before."""
LONGEST_WAIT_S = 30.0
LONGEST_MOVE_S = 30.0
"""For the operator to delete the pod whose node is left."""
LONGEST_WAIT_OF_RULE_S = 600.0
"""Longest wait by a rule within an attempt, whose pods wait too."""
_LOSSES = {
    FailureCause.WORKER_LOST: RecordKind.WORKER_LOST,
    FailureCause.PREEMPTED: RecordKind.PREEMPTED,
    FailureCause.HANG: RecordKind.HANG,
}
"""Of a worker group that is replaced, and how each is recorded."""


class AttemptPolicy(FailurePolicy):
    """Called by Ray's controller after each failure: reports it to the coordinator and decides.

    Args:
        coordinator: handle of the `Coordinator` actor.
        bucket: the run's folder.
        attempt: its number.
        rules: failures.rules.
        trial: of a sweep, whose budgets are counted here; None: it is a run.
        resources_per_worker: what Ray looks for on the nodes.
        on_one_machine: whether it is a local run, which has no operator.
    """

    def __init__(
        self,
        coordinator: Any,
        bucket: Bucket,
        attempt: int,
        rules: Sequence[ContractRule] = (),
        trial: ContractTrial | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        on_one_machine: bool = False,
    ) -> None:
        super().__init__(FailureConfig(max_failures=-1, controller_failure_limit=-1))
        self._coordinator, self._bucket, self._attempt = coordinator, bucket, attempt
        self._rules, self._budget = rules, TrialBudget(trial)
        self._of_trial, self._on_one_machine = trial is not None, on_one_machine
        self._resources_per_worker = resources_per_worker or {}
        self._restarts = RestartBackoff()
        self._remedied: ClassifiedFailure | None = None
        self._saved: ClassifiedFailure | None = None  # whose last step was asked for
        self._of_controller: set[tuple[str, ...]] = set()  # `repeats_at` of its errors
        self._made = time.time()  # by the driver, before its first worker group

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        """RETRY within the attempt, or RAISE to end it."""
        failure = self._of_hang(classify(training_failed_error))
        if failure.cause is FailureCause.SUSPENDED:
            return FailureDecision.RAISE
        if failure.cause is FailureCause.RESIZED:
            self._coordinator.interrupted.remote()  # nothing is lost
            ray.get(self._coordinator.limit_workers.remote(failure.most_workers))  # asked for next
            return FailureDecision.RETRY
        if failure.cause is FailureCause.APPLICATION:
            trace = failure.traceback or training_failed_error
            self._fail(failure, "Application", failure.message, trace, failure.retry)
            return FailureDecision.RAISE
        if self._has_no_room(failure):
            # It waits for nodes, however long: no failure, and Ray's own next wait is a minute.
            self._coordinator.interrupted.remote()
            return FailureDecision.RETRY
        verdict = self._verdict(failure)
        if verdict.ends_the_run:
            self._end_by_rule(failure, training_failed_error, verdict.facts)
            return FailureDecision.RAISE
        if failure.repeats_at in self._of_controller:
            message = f"the same error has ended two worker groups: {failure.message}"
            self._fail(failure, "Infrastructure", message, training_failed_error)
            return FailureDecision.RAISE
        if failure.cause in _LOSSES:
            self._disrupted(failure, verdict.facts)
            used_up = self._budget.used_up(failure, verdict.rule)
            if used_up is not None:  # of a trial, which alone has failed
                self._fail(failure, "Application", used_up, training_failed_error)
                return FailureDecision.RAISE
        elif failure.repeats_at:
            self._of_controller.add(failure.repeats_at)
            kind = RecordKind.INFRASTRUCTURE_ERROR
            self._coordinator.disrupted.remote(kind, failure.message, (), verdict.facts)
        elif failure.cause is FailureCause.INFRASTRUCTURE:
            self._coordinator.interrupted.remote()  # no rank of it can hang any more
        # Synchronous: the number of commits decides, and the state is reported before the wait.
        commits = ray.get(self._coordinator.commits.remote())
        wait_s = (
            self._after_storage(failure, commits)
            if failure.cause is FailureCause.STORAGE
            else self._restarts.after_loss(commits, failure.cause is FailureCause.PREEMPTED)
        )
        first = self._restarts.without_checkpoint <= 1
        self._remedied = remedied(None if first else self._remedied, failure)
        if wait_s is None:
            self._fail(failure, *self._reason(failure), training_failed_error)
            return FailureDecision.RAISE
        if verdict.rule is not None and verdict.rule.backoff is not None:
            own_s = verdict.rule.backoff.seconds(self._restarts.without_checkpoint)
            wait_s = min(own_s, LONGEST_WAIT_OF_RULE_S)
        # Of a loss alone the operator is told.
        if verdict.moves and failure.cause in _LOSSES and not self._on_one_machine:
            self._wait_for_another_pod(failure)
        time.sleep(wait_s)  # no worker runs that the controller would have to poll
        return FailureDecision.RETRY

    def _of_hang(self, failure: ClassifiedFailure) -> ClassifiedFailure:
        """The same as a hang, where a process was ended because of one."""
        if failure.cause not in (FailureCause.WORKER_LOST, FailureCause.APPLICATION):
            return failure
        hang: Hang | None = ray.get(self._coordinator.hang_of_group.remote())
        if hang is None:
            return failure
        return replace(failure, cause=FailureCause.HANG, message=hang.message)

    def _has_no_room(self, failure: ClassifiedFailure) -> bool:
        """Whether Ray has waited for workers for which there are too few nodes."""
        if failure.awaited_workers is None:
            return False
        room = nodes.room_for(self._resources_per_worker)
        return sum(room.values()) < failure.awaited_workers

    def _verdict(self, failure: ClassifiedFailure) -> Verdict:
        if not self._rules and not failure.bad_node:
            return Verdict()
        lines: list[str] = []
        if failure.ranks and failure_rules.have_patterns(self._rules):
            self._save_last_step(failure)  # first: what a rank has printed may be late
            lines = last_lines.read(self._bucket, self._source(failure), self._made)
        verdict = failure_rules.judge(self._rules, failure, lines)
        # The operator judges the loss once pod and node have told, but not that of a trial alone.
        if not verdict.certain and not self._on_one_machine and not self._of_trial:
            return replace(verdict, rule=None)
        return verdict

    def _disrupted(self, failure: ClassifiedFailure, facts: FailureFacts) -> None:
        kind = _LOSSES[failure.cause]
        self._coordinator.disrupted.remote(kind, failure.message, failure.ranks, facts)
        self._save_last_step(failure)

    def _save_last_step(self, failure: ClassifiedFailure) -> None:
        """Have the ranks that are left save it, once for each failure."""
        if not _leaves_ranks(failure) or failure is self._saved:
            return
        self._saved = failure
        # A drain may end before the ranks have saved, too. And the checkpoint for a notice may be
        # abandoned: the ranks have ended all the same, and still hold the step.
        if not failure.saved or not ray.get(self._coordinator.newest_is_committed.remote()):
            survivors.save_last_step(self._coordinator, failure.lost, self._store_answers)

    def _store_answers(self) -> bool:
        try:
            self._bucket.has_folder(manifest.FOLDER)
        except StorageError as error:
            return error.lasting
        return True

    def _wait_for_another_pod(self, failure: ClassifiedFailure) -> None:
        """Wait until the operator has deleted the failed rank's pod, or does not for long."""
        place = ray.get(self._coordinator.place_of.remote(failure.ranks))
        if place is None:
            return
        deadline = time.monotonic() + LONGEST_MOVE_S
        while place.ray_node not in nodes.dead_nodes() and time.monotonic() < deadline:
            time.sleep(0.5)

    def _source(self, failure: ClassifiedFailure) -> Source:
        group = ray.get(self._coordinator.newest_group.remote())
        return Source(self._attempt, group, failure.ranks[0])

    def _end_by_rule(
        self, failure: ClassifiedFailure, error: Exception, facts: FailureFacts
    ) -> None:
        """End the attempt, which the operator takes for the run's end: it asks the same rules."""
        self._save_last_step(failure)
        kind = "Storage" if failure.cause is FailureCause.STORAGE else "Infrastructure"
        self._fail(failure, kind, failure.message, error, facts=facts)

    def _after_storage(self, failure: ClassifiedFailure, commits: int) -> float | None:
        storage = failure.storage
        self._coordinator.storage.remote("rank training", failure.message)
        self._coordinator.interrupted.remote()
        if storage is not None and storage.waited:
            return None
        now = time.monotonic()
        self._save_last_step(failure)
        step = ray.get(self._coordinator.loss_history.remote()).step
        limit = limit_s() if storage is not None and storage.lasting else MAX_STORAGE_S
        return self._restarts.for_storage(commits, step, now, limit)

    def _reason(self, failure: ClassifiedFailure) -> tuple[Any, str]:
        if failure.cause is FailureCause.STORAGE:
            return "Storage", failure.message
        groups = f"{self._restarts.without_checkpoint} worker groups in a row ended without a newer"
        if self._remedied is not None:
            return (
                "Infrastructure",
                f"{groups} checkpoint, one of them because {self._remedied.message}",
            )
        return "Infrastructure", (
            f"{groups} checkpoint, the last one because {failure.message}; check the workers' "
            "nodes and logs, and make checkpoints more often if they are lost sooner than one is "
            "made"
        )

    def _fail(
        self,
        found: ClassifiedFailure,
        kind: Any,
        message: str,
        error: Exception | str,
        retry: Any = "Always",
        facts: FailureFacts | None = None,
    ) -> None:
        ended = Failure(
            kind=kind, message=message, traceback=without_secrets(str(error)), retry=retry
        )
        lines: list[str] = []
        if found.ranks:
            source = self._source(found)
            lines = last_lines.keep(self._bucket, source, message, self._made)
            ended = ended.model_copy(update={"rank": found.ranks[0], "last_lines": _shown(lines)})
        if facts is not None:  # a rule ends the attempt for a loss that no record has
            ended = ended.model_copy(update={"loss": failure_rules.CLASSES[found.cause]})
        elif self._rules or found.bad_node:
            facts = failure_rules.judge(self._rules, replace(found, message=message), lines).facts
        place = ray.get(self._coordinator.place_of.remote(found.ranks))
        node = (place.node if place is not None else "") or None
        ended = ended.model_copy(update={"facts": facts, "node": node})
        # Synchronous: the driver ends right after the decision, and the reason must not be lost.
        # Not yet that it has ended: the operator then deletes it, whatever it still has to write.
        ray.get(self._coordinator.concluding.remote(ended))


def _leaves_ranks(failure: ClassifiedFailure) -> bool:
    """Whether there are ranks that train no more, and may hold the last step."""
    if failure.cause is FailureCause.STORAGE:
        waited = failure.storage is not None and failure.storage.waited
        return bool(failure.ranks) and not waited  # which is of the run's own bucket
    return failure.cause in _LOSSES


def _shown(lines: list[str]) -> list[str]:
    """What the progress document has of a rank's last lines."""
    return [line[:200] for line in lines[-MOST_LAST_LINES:]]


def remedied(
    former: ClassifiedFailure | None, failure: ClassifiedFailure
) -> ClassifiedFailure | None:
    """Which failure of the worker groups in a row says what to do; None: none of them does.

    Of a killed container only some of the losses tell that its memory was full. That outlasts what
    another rank says of such a loss.

    Args:
        former: this function's result for the former groups; None: there is no former group.
        failure: of the latest group.
    """
    if failure.remedied and (former is None or failure.lost or not former.lost):
        return failure
    return former


@dataclass
class RestartBackoff:
    """The counters of one attempt. Methods return seconds to wait; None: end the attempt."""

    without_checkpoint: int = 0
    """Groups in a row that ended without a newer checkpoint; storage errors do not count."""
    _commits: int = 0
    _for_storage: int = 0
    _storage_since: float | None = None
    _storage_step: int = 0

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

    def for_storage(self, commits: int, step: int, now: float, limit_s: float) -> float | None:
        """A worker group ended because of a storage error.

        Args:
            commits: Checkpoints that this driver has committed in all.
            step: The last one that was done.
            now: Seconds of a monotonic clock.
            limit_s: Seconds after which the attempt ends.
        """
        self._reset_on_commit(commits)
        if step > self._storage_step:  # farther than before: the store has answered in between
            self._storage_step = step
            self._for_storage, self._storage_since = 0, None
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
