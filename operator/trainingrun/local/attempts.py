"""The attempts of a local run: the driver of each, how it ends, and whether another one follows."""

import json
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainingrun_protocol.contract import (
    CONTRACT_ENV,
    OUTPUT_ENV,
    PROGRESS_FILE,
    RANK_PODS_FILE,
    SUSPEND_FILE,
    RunContract,
)
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE, LEASE_LOST_EXIT_CODE, SUSPEND_EXIT_CODE
from trainingrun_protocol.failure_rules import FailureFacts, first_match
from trainingrun_protocol.progress import Failure, Progress, Record

from ..api.failures_spec import Failures
from ..api.status import LossReason
from ..reconciling.attempts import budgets, retry_policy
from ..reconciling.bookkeeping import Charged
from . import processes
from .ray_nodes import LocalRay


class Driver:
    """One `python -m trainingrun_runtime`."""

    def __init__(self, ray: LocalRay, contract: RunContract, log: Path) -> None:
        """Start it.

        Args:
            ray: A running cluster.
            contract: The contract of this attempt.
            log: File for its output, which is also that of the training code.
        """
        self._state = ray.head.state
        self.log = log
        self._output, self._shown = self._state / "script-output", 0
        of_former = (PROGRESS_FILE, SUSPEND_FILE, RANK_PODS_FILE, self._output.name)
        for name in of_former:
            (self._state / name).unlink(missing_ok=True)
        self._progress: Progress | None = None
        self._seen_ns = 0
        variables = {
            CONTRACT_ENV: contract.model_dump_json(by_alias=True),
            OUTPUT_ENV: str(self._output),
        }
        self._process = ray.start_on_head(["-m", "trainingrun_runtime"], variables, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def progress(self) -> Progress | None:
        """Its newest progress document; None before the first."""
        file = self._state / PROGRESS_FILE
        try:
            changed = file.stat().st_mtime_ns
            if changed != self._seen_ns:
                self._progress = Progress.model_validate_json(file.read_bytes())
                self._seen_ns = changed
        except FileNotFoundError:
            pass
        return self._progress

    def ranks(self) -> int:
        """How many ranks have joined."""
        try:
            return len(json.loads((self._state / RANK_PODS_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return 0

    def printed(self) -> str:
        """What its script has printed after the training since the last call: whole lines."""
        try:
            with self._output.open("rb") as file:
                file.seek(self._shown)
                found = file.read()
        except FileNotFoundError:
            return ""
        if self.exit_code is None:
            found = found[: found.rfind(b"\n") + 1]
        self._shown += len(found)
        return found.decode(errors="replace")

    def suspend(self, wait_s: float) -> bool:
        """Request a checkpoint and the end, and wait `wait_s` seconds; whether it has."""
        try:
            (self._state / SUSPEND_FILE).touch()
            return self._process.wait(timeout=wait_s) == SUSPEND_EXIT_CODE
        except (OSError, subprocess.TimeoutExpired):
            return False

    def success(self) -> Progress | None:
        """Its last document, where it has ended and the run has succeeded."""
        code = self.exit_code  # before the document, so that the last one is read
        return _success(code, self.progress())

    def kill(self) -> None:
        """Kill it and every process that it started."""
        processes.kill(self._process)


def _success(code: int | None, progress: Progress | None) -> Progress | None:
    """The last document of a driver that has ended with this code, where the run has succeeded."""
    done = code == DONE_EXIT_CODE and progress is not None and progress.result is not None
    return progress if done else None


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed, and may be followed by another."""

    failure: Failure
    newer_checkpoint: bool
    """Whether it committed a checkpoint of a later step than those before."""
    stepped: bool
    """Whether it did a step."""


def outcome(
    code: int, progress: Progress | None, saved_before: int
) -> Progress | str | FailedAttempt:
    """How an attempt ended: by success, without another attempt, or with one that may follow.

    Args:
        code: The driver's exit code.
        progress: Its last document.
        saved_before: Step of the newest checkpoint of the attempts before; 0: there is none.
    """
    if (done := _success(code, progress)) is not None:
        return done
    if code == LEASE_LOST_EXIT_CODE:
        return "another process trains this run now, and only one may"
    failure = progress.failure if progress is not None else None
    if failure is None:
        # The driver reported no failure: it was killed, which is no error of the user's code.
        failure = Failure(
            kind="Infrastructure", message=f"the driver ended with exit code {code}, unexplained"
        )
    return failed(failure, progress, saved_before)


def failed(failure: Failure, progress: Progress | None, saved_before: int) -> FailedAttempt:
    """An attempt that failed; its arguments are those of `outcome`."""
    # A driver's document begins with the newest checkpoint of the drivers before it.
    saved = progress.checkpoint.step if progress and progress.checkpoint else 0
    return FailedAttempt(
        failure,
        newer_checkpoint=saved > saved_before,
        stepped=bool(progress and progress.step_time is not None),
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run is."""

    step: int = 0
    """Steps done."""
    checkpoint: int = 0
    """Step of its newest checkpoint."""
    productive: float = 0.0
    """Seconds in steps that counted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What the run has used up so far."""

    used: Mapping[str, int] = field(default_factory=dict)
    """How often each budget was used, and each rule with a budget of its own, since it was full."""
    charged_at: Mapping[str, Charged] = field(default_factory=dict)
    """When each of them was used last."""
    attempts_without_progress: int = 0
    """Attempts in a row that ended without a newer checkpoint."""
    error: str = ""
    """That of the code which ended the last attempt before its first step; empty: none did."""

    @property
    def restarts(self) -> int:
        """Failures of the application that were retried; failures.maxRestarts bounds them."""
        return self.used.get("application", 0)

    def charged(self, failures: Failures, name: str, at: Standing) -> "Tally":
        """With one more use of a budget or rule, which is full first after enough progress."""
        before = self.charged_at.get(name)
        full = before is not None and budgets.progress_since(
            failures, before, at.checkpoint, at.productive
        )
        count = 1 if full else self.used.get(name, 0) + 1
        now = Charged(step=max(at.step, at.checkpoint), productive=at.productive)
        return replace(
            self,
            used={**self.used, name: count},
            charged_at={**self.charged_at, name: now},
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """Start another attempt."""

    tally: Tally
    """The tally after this failure."""
    wait_s: float
    """Seconds to wait before it."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run has failed."""

    message: str
    """Why no further attempt is made, in one sentence."""


def after_loss(
    rules: Failures, tally: Tally, record: Record, at: Standing, *, of_trial: bool = False
) -> tuple[Tally, GiveUp | None]:
    """What follows a loss after which the attempt goes on: the new tally, and why it does not.

    Args:
        rules: The run's failures.
        tally: What was used up before.
        record: Of the loss.
        at: Where the run is.
        of_trial: Whether a trial of a sweep was lost, whose budgets its driver counts.
    """
    bounded = () if of_trial else ("hang",)
    return _charged(rules, tally, record.kind.value, record.facts, at, bounded)


def _charged(
    rules: Failures,
    tally: Tally,
    loss: str,
    facts: FailureFacts | None,
    at: Standing,
    bounded: Collection[str],
) -> tuple[Tally, GiveUp | None]:
    """The tally after a failure of this class, and why no restart follows.

    `bounded`: the budgets that count such failures.
    """
    known, reason = rules.contract_rules, LossReason(loss)
    rule = first_match(known, loss, facts or FailureFacts())
    if rule is not None:
        number = known.index(rule) + 1
        if rule.then == "Fail":
            return tally, GiveUp(
                f"rule {number} of failures.rules ends the run with such a failure"
            )
        if rule.has_own_budget:
            tally = tally.charged(rules, rule.key, at)
            if rule.max_restarts is not None and tally.used[rule.key] > rule.max_restarts:
                return tally, GiveUp(
                    f"maxRestarts of rule {number} of failures.rules is {rule.max_restarts}, and "
                    "all of them are used up"
                )
            return tally, None
    budget = reason.budget
    if budget not in bounded:
        return tally, None
    tally = tally.charged(rules, budget, at)
    name, most = {
        "application": ("maxRestarts", rules.max_restarts),
        "hang": ("maxHangs", rules.max_hangs),
    }.get(budget, ("maxPreemptions", rules.max_preemptions))
    if 0 <= most < tally.used[budget]:
        return tally, GiveUp(f"failures.{name} is {most}, and all of them are used up")
    return tally, None


def after_failure(
    rules: Failures,
    tally: Tally,
    failure: Failure,
    newer_checkpoint: bool,
    stepped: bool = True,
    at: Standing | None = None,
) -> Retry | GiveUp:
    """What follows the end of an attempt.

    Args:
        rules: The run's failures.
        tally: What was used up before.
        failure: Why the attempt ended.
        newer_checkpoint: Whether the attempt committed a checkpoint.
        stepped: Whether it did a step.
        at: Where the run is; None: it has done nothing.
    """
    reason = retry_policy.reason_of(failure)
    application = reason.budget == "application"
    rule = first_match(rules.contract_rules, reason.value, failure.facts or FailureFacts())
    every = ("application", "infrastructure", "hang")
    after, ended = _charged(rules, tally, reason.value, failure.facts, at or Standing(), every)
    after = replace(
        after,
        attempts_without_progress=0 if newer_checkpoint else tally.attempts_without_progress + 1,
        error=failure.message if application and not stepped else "",
    )
    if failure.retry == "Never":
        return GiveUp("the training is done, and another attempt would only repeat it")
    repeated = tally.error and retry_policy.same_error(after.error, tally.error)
    if failure.retry == "UnlessRepeated" and repeated and rule is None:
        return GiveUp("the same error ended two attempts in a row before their first step")
    if ended is not None:
        return ended
    if after.attempts_without_progress >= rules.max_attempts_without_progress:
        return GiveUp(
            f"{after.attempts_without_progress} attempts in a row made no newer checkpoint"
        )
    wait = retry_policy.backoff(
        reason,
        after.attempts_without_progress,
        rules.backoff,
        rule.backoff if rule is not None else None,
    )
    return Retry(after, wait.total_seconds())
