"""spec.budget: what a run may cost."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, Number, Rule, inherited


class RunBudget(Model):
    """What a run may cost, by the operator's prices; see docs/cost.md."""

    amount: Number = Field(ge=0, le=1e9)
    """In the currency of the operator's prices. What has no price does not count, and condition
    Waiting then says BudgetUnknown."""
    action: Literal["Suspend", "Warn"] = Field(default="Suspend", json_schema_extra=inherited)
    """What is done once the run has cost so much. Suspend: as `suspend: true` does, until the
    amount is larger than what the run has cost. Warn: condition Waiting says BudgetSpent, and the
    training continues. Default: Suspend."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # The API server rounds a minimum such as 0.01 down where the value is a whole number.
        Rule(
            "!has(self.amount) || self.amount > 0.0",
            "must be more than 0; leave budget out for a run without one",
            lambda budget: budget.amount > 0,
            "amount",
        ),
    )
