"""spec.failures: how often, and how soon, a run is tried again."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainingrun_protocol.failure_rules import (
    LONGEST_PATTERN,
    MOST_RULES,
    ContractRule,
    LossClass,
    Then,
)

from .base import Model, NumberOrAuto, Rule, Whole, inherited


class Backoff(Model):
    """The wait before the next attempt: initialSeconds * factor ** (failures in a row - 1)."""

    initial_seconds: Whole = Field(default=10, ge=0, le=86400, json_schema_extra=inherited)
    """Seconds before the first retry. Default: 10."""
    factor: Whole = Field(default=2, ge=1, le=10, json_schema_extra=inherited)
    """By how much each further wait is longer. Default: 2."""
    max_seconds: Whole = Field(default=600, ge=0, le=86400, json_schema_extra=inherited)
    """The longest wait, in seconds. Default: 600."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # What is inherited, the API server does not know: by it, both have to be written then.
            "(has(self.initialSeconds) ? self.initialSeconds : 10) <= "
            "(has(self.maxSeconds) ? self.maxSeconds : 600)",
            "must not be less than initialSeconds; raise it or lower initialSeconds",
            lambda backoff: backoff.initial_seconds <= backoff.max_seconds,
            "max_seconds",
        ),
    )


SHORTEST_HANG_S = 10
LONGEST_HANG_S = 86400
"""Bounds of failures.hang.afterSeconds."""


class Hang(Model):
    """What counts as a hang, and what follows."""

    after_seconds: NumberOrAuto = Field(default="auto", json_schema_extra=inherited)
    """Seconds without a step, 10 to 86400. auto: ten times the longest of the last hundred steps,
    at least 300, and at least 1800 while a rank computes. Outside of the steps of a session, and
    without one, the ranks have to use no CPU, GPU or network for that long, and for 25 s at
    least. Default: auto."""
    action: Literal["Restart", "Report"] = Field(default="Restart", json_schema_extra=inherited)
    """Restart: the process that the others wait for is ended, and the workers begin again from the
    last step. Report: the stacks are kept and the condition Waiting says so; nothing is ended.
    Default: Restart."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.afterSeconds) || (type(self.afterSeconds) == int ? self.afterSeconds >= "
            f"{SHORTEST_HANG_S} && self.afterSeconds <= {LONGEST_HANG_S} : "
            "self.afterSeconds == 'auto')",
            f"must be a number of seconds from {SHORTEST_HANG_S} to {LONGEST_HANG_S}, or auto",
            lambda hang: (
                hang.after_seconds == "auto"
                or (
                    isinstance(hang.after_seconds, int)
                    and SHORTEST_HANG_S <= hang.after_seconds <= LONGEST_HANG_S
                )
            ),
            "after_seconds",
        ),
    )


def _is_re2(pattern: str) -> bool:
    """Whether RE2 can read a text: pyarrow's, with which the runtime searches.

    The command line and a run on one machine have it. The operator does not, and needs none: what
    it reads the API server has taken, whose rule asks RE2 as well. No other engine has a say.
    """
    try:
        import pyarrow as pa  # no dependency of the operator
        import pyarrow.compute as pc
    except ImportError:
        return True
    try:
        pc.match_substring_regex(pa.array([""], pa.string()), pattern)
    except (pa.ArrowException, UnicodeError):
        return False
    return True


class When(Model):
    """Which failures a rule is about: all of what is set has to hold. At least one of them is."""

    classes: list[LossClass] = Field(default_factory=list, max_length=10)
    """Its class, as in status.attempts and status.disruptions.history, is one of these."""
    reasons: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, max_length=16
    )
    """One of its reasons is one of these: of a container or pod (`OOMKilled`, `Evicted`), of the
    RayJob (`SubmissionFailed`), or the type of the exception (`ValueError`)."""
    exit_codes: list[Annotated[Whole, Field(ge=1, le=255)]] = Field(
        default_factory=list, max_length=16
    )
    """The exit code of Ray's container, of the driver, or the one of `sys.exit(42)` in the training
    code is one of these."""
    log_pattern: str | None = Field(default=None, min_length=1, max_length=LONGEST_PATTERN)
    """A regular expression in RE2's syntax that is found in the failure's message, or in one of the
    last 50 lines that the rank has printed that failed first. An attempt has the patterns with
    which it began."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.classes) && self.classes.size() > 0) || "
            "(has(self.reasons) && self.reasons.size() > 0) || "
            "(has(self.exitCodes) && self.exitCodes.size() > 0) || has(self.logPattern)",
            "must have at least one of classes, reasons, exitCodes and logPattern",
            lambda when: bool(
                when.classes or when.reasons or when.exit_codes or when.log_pattern is not None
            ),
        ),
        Rule(
            # A pattern that is none is an error of matches(), which `||` would hide, and which the
            # API server reports of the object as a whole.
            "!has(self.logPattern) || ''.matches(self.logPattern) in [true, false]",
            "logPattern must be a regular expression in RE2's syntax, such as 'CUDA error: .* ECC'"
            "; it has no lookahead, lookbehind or reference to a group",
            lambda when: when.log_pattern is None or _is_re2(when.log_pattern),
        ),
    )


class FailureRule(Model):
    """What follows failures of one kind."""

    when: When
    """Which failures."""
    then: Then
    """Restart: training goes on from the newest checkpoint, in the same attempt or the next one, as
    without the rule. RestartOnOtherNode: the same, and the run's pods exclude the node.
    RestartOnDemand: the same, and new worker pods go to on-demand nodes for
    workers.capacity.fallback.returnAfterSeconds, 1800 by default. Fail: the run fails, once no
    earlier rule can hold any more: mostly within seconds, and after 5 minutes at the latest.
    Ignore: as Restart, and no budget is used; failures.maxAttemptsWithoutProgress still ends the
    run."""
    max_restarts: Whole | None = Field(default=None, ge=0, le=10000)
    """Restarts by this rule, after which the run fails at the next such failure. They use none of
    failures.maxRestarts, maxPreemptions and maxHangs. Default: those count."""
    backoff: Backoff | None = None
    """The wait before a restart by this rule. Default: as without the rule."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.maxRestarts) || !(self.then in ['Fail', 'Ignore'])",
            "must be left out with then: Fail or Ignore, which use no budget",
            lambda rule: rule.max_restarts is None or rule.then not in ("Fail", "Ignore"),
            "max_restarts",
        ),
        Rule(
            "!has(self.backoff) || self.then != 'Fail'",
            "must be left out with then: Fail, after which nothing begins",
            lambda rule: rule.backoff is None or rule.then != "Fail",
            "backoff",
        ),
    )

    def contract(self) -> ContractRule:
        """As the runtime reads it."""
        return ContractRule.model_validate(self.to_dict())


class Failures(Model):
    """How often, and how soon, a run is tried again."""

    max_restarts: Whole = Field(default=3, ge=0, le=10000, json_schema_extra=inherited)
    """Retries after failures of the application itself, such as an exception. None follows the same
    error of the code in two attempts in a row before their first step, and an error of a script
    after its training. Default: 3."""
    max_preemptions: Whole = Field(default=-1, ge=-1, le=100000, json_schema_extra=inherited)
    """Losses of infrastructure that are survived; -1: as many as there are. Of a sweep they hold
    for each trial: one that is lost more often fails alone. Default: -1."""
    max_hangs: Whole = Field(default=3, ge=-1, le=100000, json_schema_extra=inherited)
    """Hangs that are ended by a restart; the next one ends the run. -1: as many as there are. Of a
    sweep they hold for each trial, which alone fails. Default: 3."""
    hang: Hang = Field(default_factory=Hang)
    """What counts as a hang, and what follows."""
    backoff: Backoff = Field(default_factory=Backoff)
    """The wait before the next attempt. A wait that has begun stays as long as it is."""
    failure_rules: list[FailureRule] = Field(
        default_factory=list, max_length=MOST_RULES, alias="rules"
    )
    """What follows failures of certain kinds. The first rule that a failure meets counts; one that
    meets none is treated as without rules."""
    refill_after_steps: Whole | None = Field(default=None, ge=1, le=1_000_000_000)
    """Each budget is full again once so many new steps since the last failure that has used it are
    in a checkpoint. Default: never."""
    refill_after_seconds: Whole | None = Field(default=None, ge=1, le=31536000)
    """The same after so many seconds of training in steps that counted, and a newer checkpoint.
    With both, what comes first."""
    max_attempts_without_progress: Whole = Field(
        default=3, ge=1, le=1000, json_schema_extra=inherited
    )
    """Attempts in a row that may end without a newer checkpoint, whatever ended them.
    Default: 3."""
    keep_failed_pods_seconds: Whole = Field(default=0, ge=0, le=604800, json_schema_extra=inherited)
    """Seconds for which the pods of a failed attempt stay after its driver has ended. Their GPUs
    stay in use for as long. The next attempt, suspend, a spent budget with action Suspend and
    ttlSecondsAfterFinished free them earlier. More seconds than an attempt began with keep its pods
    for ten minutes longer at most. Default: 0."""

    @property
    def contract_rules(self) -> list[ContractRule]:
        """The rules as the runtime reads them."""
        return [rule.contract() for rule in self.failure_rules]
