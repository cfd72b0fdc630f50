"""The budgets of a trial of a sweep: one that uses up its own fails, and the others train on."""

from collections import Counter

from trainingrun_protocol.contract import ContractTrial
from trainingrun_protocol.failure_rules import ContractRule

from ..known_errors.failure_causes import ClassifiedFailure, FailureCause


class TrialBudget:
    """Counts what one driver sees of it.

    Args:
        trial: the contract's; None: a run, whose budgets the operator counts.
    """

    def __init__(self, trial: ContractTrial | None) -> None:
        self._used: Counter[bool] = Counter()
        self._most = {
            True: ("hung", "maxHangs", trial.max_hangs if trial is not None else -1),
            False: ("was lost", "maxPreemptions", trial.max_losses if trial is not None else -1),
        }

    def used_up(self, failure: ClassifiedFailure, rule: ContractRule | None) -> str | None:
        """Count a loss after which a worker group would follow; why none does, in a sentence.

        Args:
            failure: the loss.
            rule: that it meets, which may pay for it.
        """
        if rule is not None and rule.has_own_budget:
            return None
        hung = failure.cause is FailureCause.HANG
        self._used[hung] += 1
        what, name, most = self._most[hung]
        if most < 0 or self._used[hung] <= most:
            return None
        times = "once" if self._used[hung] == 1 else f"{self._used[hung]} times"
        return (
            f"it {what} {times} and failures.{name} is {most} for each trial, at last with "
            f"{failure.message}"
        )
