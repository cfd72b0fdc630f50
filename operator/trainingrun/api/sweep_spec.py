"""spec.sweep: the run is trained several times, with different values of its config."""

from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.json_schema import WithJsonSchema

from trainingrun_protocol.progress import MOST_TRIALS

from .base import Model, Number, Rule, Whole, list_by

_LONGEST_TEXT = 200

_SCALAR_SCHEMA = {"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 0, "maxItems": 0}
"""Any JSON, but nothing in an object or a list: structural schemas have no type for scalars."""

Value = Annotated[Any, WithJsonSchema(_SCALAR_SCHEMA)]
"""A scalar; a `Rule` of the model also refuses empty lists and mappings."""


class SweepParameter(Model):
    """A key of `training.config` and the values that are tried for it."""

    name: str = Field(min_length=1, max_length=100)
    """The key; a value of it in `training.config` is not used."""
    values: list[Value] | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Numbers, texts or switches to choose from. Exactly one of values, and min with max, is set.
    """
    min: Number | None = None
    """The smallest value."""
    max: Number | None = None
    """The largest value."""
    scale: Literal["linear", "log"] = "linear"
    """With min and max: `log` draws as many values from 0.001 to 0.01 as from 0.01 to 0.1."""
    type: Literal["float", "integer"] = "float"
    """With min and max: `integer` draws whole numbers alone, both ends included."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.min) == has(self.max)",
            "set both min and max, or values in their place",
            lambda p: (p.min is None) == (p.max is None),
        ),
        Rule(
            None,  # CEL does not see values, whose items have no type
            "set either values, or min and max",
            lambda p: (p.values is None) == (p.min is not None),
        ),
        Rule(
            "!has(self.min) || !has(self.max) || self.min < self.max",
            "must be less than max",
            lambda p: p.min is None or p.max is None or p.min < p.max,
            "min",
        ),
        Rule(
            "self.scale != 'log' || !has(self.min) || self.min > 0.0",
            "must be greater than 0 where scale is log",
            lambda p: p.scale != "log" or p.min is None or p.min > 0,
            "min",
        ),
        Rule(
            "has(self.min) || has(self.max) || self.scale == 'linear'",
            "leave out scale with values, which are tried as they are",
            lambda p: p.min is not None or p.max is not None or p.scale == "linear",
            "scale",
        ),
        Rule(
            "has(self.min) || has(self.max) || self.type == 'float'",
            "leave out type with values, which are tried as they are",
            lambda p: p.min is not None or p.max is not None or p.type == "float",
            "type",
        ),
        Rule(
            # CEL does not see the items, but fails to read null. Unless it does so at creation, it
            # does at each later write, that of the status included.
            "self == self",
            "no item of values may be null",
            lambda p: None not in (p.values or ()),
        ),
        Rule(
            None,
            "every item must be a number, true or false, or a text of at most "
            f"{_LONGEST_TEXT} characters",
            lambda p: all(map(_is_scalar, p.values or ())),
            "values",
        ),
        Rule(
            None,
            "must be whole numbers where type is integer",
            lambda p: (
                p.type != "integer"
                or all(end is None or float(end).is_integer() for end in (p.min, p.max))
            ),
            "type",
        ),
    )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    return isinstance(value, bool | int | float)


class Sweep(Model):
    """The run is trained several times, each time with other values in its config."""

    samples: Whole | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Number of trials; not with search grid."""
    metric: str = Field(min_length=1, max_length=200)
    """Metric by which trials are compared; the training reports it."""
    mode: Literal["min", "max"]
    """Whether smaller or larger is better."""
    scheduler: Literal["ASHA", "PBT", "none"] = "none"
    """`ASHA` stops a trial early that is worse than most others were after as many steps. `PBT`,
    population based training, has all trials wait for each other after every perturbationInterval;
    then the worst quarter continue from checkpoints of the best quarter, with changed values.
    `none` trains each one to its end."""
    grace_steps: Whole | None = Field(default=None, ge=1, le=1000000000)
    """With ASHA: steps after which trials are first compared. Default: 100."""
    reduction_factor: Whole | None = Field(default=None, ge=2, le=16)
    """With ASHA: they are compared again after so many times the steps, and one in so many
    continues. Default: 4."""
    perturbation_interval: Whole | None = Field(default=None, ge=1, le=1000000000)
    """With PBT: steps that all trials do before they are compared, again and again."""
    search: Literal["random", "grid", "Optuna"] = "random"
    """`random` draws the values of each trial; `grid` tries every combination of values; `Optuna`
    chooses them from the results of the trials so far, and needs an image with that library."""
    concurrency: Whole = Field(default=1, ge=1, le=100)
    """Trials at once, each with workers.count workers of its own; there are pods for all of them.
    """
    space: list[SweepParameter] = Field(
        min_length=1, max_length=20, json_schema_extra=list_by("name")
    )
    """The keys of `training.config` that differ from trial to trial."""

    @property
    def trials(self) -> int:
        """Number of trials."""
        return self.samples or prod(len(p.values or ()) for p in self.space)

    @property
    def trials_at_once(self) -> int:
        """Number of trials that are trained at once: no more than there are."""
        return min(self.concurrency, self.trials)

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.samples) == (self.search != 'grid')",
            "set samples, the number of trials, and leave it out with search grid, which tries "
            "every combination of values",
            lambda sweep: (sweep.samples is not None) == (sweep.search != "grid"),
            "samples",
        ),
        Rule(
            "self.search != 'grid' || self.space.all(p, !has(p.min))",
            "every item must have values with search grid; write values in place of min and max, "
            "or use search random",
            lambda sweep: sweep.search != "grid" or all(p.values is not None for p in sweep.space),
            "space",
        ),
        Rule(
            "self.scheduler == 'ASHA' || (!has(self.graceSteps) && !has(self.reductionFactor))",
            "graceSteps and reductionFactor are settings of ASHA; leave them out, or set "
            "scheduler: ASHA",
            lambda sweep: (
                sweep.scheduler == "ASHA"
                or (sweep.grace_steps is None and sweep.reduction_factor is None)
            ),
            "scheduler",
        ),
        Rule(
            "(self.scheduler == 'PBT') == has(self.perturbationInterval)",
            "set perturbationInterval, a number of steps, with scheduler PBT, and leave it out "
            "with others",
            lambda sweep: (sweep.scheduler == "PBT") == (sweep.perturbation_interval is not None),
            "perturbationInterval",
        ),
        Rule(
            "self.scheduler != 'PBT' || self.search in ['random', 'grid']",
            "must be random or grid with scheduler PBT, which changes the values by itself",
            lambda sweep: sweep.scheduler != "PBT" or sweep.search in ("random", "grid"),
            "search",
        ),
        Rule(
            None,
            f"must have at most {MOST_TRIALS} combinations of values with search grid; take some "
            "values away, or use search random",
            lambda sweep: sweep.search != "grid" or sweep.trials <= MOST_TRIALS,
            "space",
        ),
        Rule(
            None,  # the list's map type says it at the API server
            "every name may appear only once",
            lambda sweep: len({p.name for p in sweep.space}) == len(sweep.space),
            "space",
        ),
    )
