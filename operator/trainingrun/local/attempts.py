"""The attempts of a local run: the driver of each, how it ends, and whether another one follows."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from trainingrun_protocol.contract import (
    CONTRACT_ENV,
    OUTPUT_ENV,
    PROGRESS_FILE,
    SUSPEND_FILE,
    RunContract,
)
from trainingrun_protocol.exit_codes import DONE_EXIT_CODE, LEASE_LOST_EXIT_CODE, SUSPEND_EXIT_CODE
from trainingrun_protocol.progress import Failure, Progress

from ..api.failures_spec import Failures
from ..reconciling.attempts import retry_policy
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
        for name in (PROGRESS_FILE, SUSPEND_FILE, self._output.name):  # of a former attempt
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
        (self._state / SUSPEND_FILE).touch()
        try:
            return self._process.wait(timeout=wait_s) == SUSPEND_EXIT_CODE
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """Kill it and every process that it started."""
        processes.kill(self._process)


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed, and may be followed by another."""

    failure: Failure
    newer_checkpoint: bool
    """Whether it committed a checkpoint."""
    stepped: bool
    """Whether it did a step."""


def outcome(code: int, progress: Progress | None) -> Progress | str | FailedAttempt:
    """How an attempt ended: by success, without another attempt, or with one that may follow.

    Args:
        code: The driver's exit code.
        progress: Its last document.
    """
    if code == DONE_EXIT_CODE and progress is not None and progress.result is not None:
        return progress
    if code == LEASE_LOST_EXIT_CODE:
        return "another process trains this run now, and only one may"
    failure = progress.failure if progress is not None else None
    if failure is None:
        # The driver reported no failure: it was killed, which is no error of the user's code.
        failure = Failure(
            kind="Infrastructure", message=f"the driver ended with exit code {code}, unexplained"
        )
    return failed(failure, progress)


def failed(failure: Failure, progress: Progress | None) -> FailedAttempt:
    """An attempt that failed, of which this is the last document."""
    return FailedAttempt(
        failure,
        newer_checkpoint=bool(progress and progress.checkpoint),
        stepped=bool(progress and progress.step_time is not None),
    )


@dataclass(frozen=True, slots=True)
class Tally:
    """What the run has used up so far."""

    restarts: int = 0
    """Failures of the application that were retried; failures.maxRestarts bounds them."""
    losses: int = 0
    """Losses of infrastructure; failures.maxPreemptions bounds them, and never the other."""
    attempts_without_progress: int = 0
    """Attempts in a row that ended without a newer checkpoint."""
    error: str = ""
    """That of the code which ended the last attempt before its first step; empty: none did."""


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


def after_failure(
    rules: Failures, tally: Tally, failure: Failure, newer_checkpoint: bool, stepped: bool = True
) -> Retry | GiveUp:
    """What follows the end of an attempt.

    Args:
        rules: The run's failures.
        tally: What was used up before.
        failure: Why the attempt ended.
        newer_checkpoint: Whether the attempt committed a checkpoint.
        stepped: Whether it did a step.
    """
    reason = retry_policy.reason_of(failure)
    application = reason.budget == "application"
    after = Tally(
        restarts=tally.restarts + application,
        losses=tally.losses + (not application),
        attempts_without_progress=0 if newer_checkpoint else tally.attempts_without_progress + 1,
        error=failure.message if application and not stepped else "",
    )
    if failure.retry == "Never":
        return GiveUp("the training is done, and another attempt would only repeat it")
    repeated = tally.error and retry_policy.same_error(after.error, tally.error)
    if failure.retry == "UnlessRepeated" and repeated:
        return GiveUp("the same error ended two attempts in a row before their first step")
    if application and after.restarts > rules.max_restarts:
        return GiveUp(f"failures.maxRestarts is {rules.max_restarts}, and all of them are used up")
    if not application and 0 <= rules.max_preemptions < after.losses:
        return GiveUp(
            f"failures.maxPreemptions is {rules.max_preemptions}, and all of them are used up"
        )
    if after.attempts_without_progress >= rules.max_attempts_without_progress:
        return GiveUp(
            f"{after.attempts_without_progress} attempts in a row made no newer checkpoint"
        )
    wait = retry_policy.backoff(reason, after.attempts_without_progress, rules.backoff)
    return Retry(after, wait.total_seconds())
