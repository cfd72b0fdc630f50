"""spec.budget: what a run may cost."""

from typing import Literal

from pydantic import Field

from .base import Model, Number


class RunBudget(Model):
    """What a run may cost, by the operator's prices; see docs/cost.md."""

    amount: Number = Field(ge=0.01, le=1e9)
    """In the currency of the operator's prices. What has no price does not count, and condition
    Waiting then says BudgetUnknown."""
    action: Literal["Suspend", "Warn"] = "Suspend"
    """What is done once the run has cost so much. Suspend: as `suspend: true` does, until the
    amount is larger than what the run has cost. Warn: condition Waiting says BudgetSpent, and the
    training continues."""
