"""What a run has from TrainingDefaults and ClusterTrainingDefaults: merged, and held to. Pure.

A run's own fields come first, then those of its namespace's object, of the cluster's, and what is
built in, field by field. Two exceptions, because parts of two levels would not fit together: of a
level that sets `storage.uri`, the endpoint, region and credentialsSecret are its own too, and of
one that sets `workers.capacity.type` the fallback. While Kueue's label names a queue for a run, it
has none of a level below. A podTemplate is merged over that of the level below, as over what is
rendered. Limits hold of every object.

Before the first attempt all of it is kept in the run's status (`status.defaults`), and from then on
it is read there alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..api import salvage
from ..api.budget_spec import RunBudget
from ..api.defaults import FIELDS, AppliedDefaults, DefaultsSource, FieldTree, Maximum
from ..api.pods_spec import Capacity
from ..api.storage_spec import Output
from ..api.v1alpha1 import KUEUE_QUEUE, RunSpec
from .merge import merge_pod_template

Object = Mapping[str, Any]
"""An object as the API server gives it."""

Path = tuple[str, ...]
"""The names that lead to a field of a spec."""

_TOGETHER: Mapping[Path, tuple[str, ...]] = {
    ("storage", "uri"): ("endpoint", "region", "credentialsSecret"),
    ("workers", "capacity", "type"): ("fallback",),
}
"""Fields beside a field that are from the level that sets it."""

_POD_TEMPLATE = ("podTemplate",)

_HELD: Mapping[Path, Any] = {
    ("workers", "capacity", "type"): Capacity.model_fields["type"].default,
    ("storage", "output", "maxSize"): Output.model_fields["max_size"].default,
}
"""Fields that cannot change after creation, with what is built in. That may be written or left out
later, since the CRD has no default of them; see `_as_begun`. A fallback goes with the type."""


def applied(run: Object, objects: Sequence[Object]) -> AppliedDefaults | None:
    """What a run has from these objects; None: there are none.

    Args:
        run: As the API server has it, or as its user has written it.
        objects: That of its namespace before that of the cluster.
    """
    if not objects:
        return None
    specs = [_known(_mapping(each.get("spec")), FIELDS) for each in objects]
    levels = [_mapping(run.get("spec")), *specs]
    merged: Mapping[str, Any] = {}
    for spec in reversed(specs):
        merged = _over(merged, spec)
    own = run.get("spec")
    used = _resolved(run, own, merged) if isinstance(own, Mapping) else {}
    sources = [
        DefaultsSource(
            kind=each["kind"],
            name=each["metadata"]["name"],
            resource_version=each["metadata"].get("resourceVersion", ""),
            generation=each["metadata"].get("generation", 0),
            fields=[
                ".".join(path)
                for path in _set_fields(specs[place])
                if _has(used, path)
                and not any(_is_hidden(path, level) for level in levels[: place + 1])
            ],
            maximum=_maximum(each),
        )
        for place, each in enumerate(objects)
    ]
    return AppliedDefaults(sources=sources, spec=dict(merged))


def kept(run: Object) -> AppliedDefaults | None:
    """What the status of a run says that it has, as far as it is understood; None: nothing."""
    found = _mapping(run.get("status")).get("defaults")
    return salvage.read(AppliedDefaults, found) if isinstance(found, Mapping) else None


def resolved(run: Object, defaults: AppliedDefaults | None) -> Object:
    """The run with what it has from its defaults in its spec."""
    own = run.get("spec")
    if defaults is None or not isinstance(own, Mapping):
        return run
    return {**run, "spec": _resolved(run, _as_begun(own, defaults), defaults.spec)}


def _as_begun(own: Mapping[str, Any], defaults: AppliedDefaults) -> Mapping[str, Any]:
    """A run's own spec as it was when its defaults were found, in the fields of `_HELD`."""
    taken = {field for source in defaults.sources for field in source.fields}
    for path, built_in in _HELD.items():
        if ".".join(path) in taken:
            own = _with(own, path, None)
        elif _at(own, path) is None and _at(defaults.spec, path) is not None:
            own = _with(own, path, built_in)
    return own


def _at(spec: Mapping[str, Any], path: Path) -> Any:
    for name in path[:-1]:
        spec = _mapping(spec.get(name))
    return spec.get(path[-1])


def _with(spec: Mapping[str, Any], path: Path, value: Any) -> Mapping[str, Any]:
    """A spec with another value of a field; None: without one."""
    name, *rest = path
    if rest:
        below = spec.get(name)
        if below is not None and not isinstance(below, Mapping):
            return spec  # which is refused
        value = _with(below or {}, tuple(rest), value)
    return {**spec, name: value}


def _resolved(run: Object, own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A run's own spec over that of its defaults."""
    if KUEUE_QUEUE in _mapping(_mapping(run.get("metadata")).get("labels")):
        # The label may be taken away: the defaults that are kept have the queue of then.
        defaults = _without_queue(defaults)
    spec = _over(defaults, own)
    # A part of what is optional is for runs that have it: by itself it would be refused.
    if own.get("budget") is None and "amount" not in _mapping(spec.get("budget")):
        spec.pop("budget", None)
    queue = _mapping(_mapping(spec.get("scheduling")).get("queue"))
    own_queue = _mapping(own.get("scheduling")).get("queue")
    if own_queue is None and not {"kind", "name"} <= queue.keys():
        spec = _without_queue(spec)
    return spec


def resolved_by_status(run: Object) -> Object:
    """The same, as its status says."""
    return resolved(run, kept(run))


def origin(run: Object, defaults: AppliedDefaults | None, location: Sequence[int | str]) -> str:
    """The end of a sentence about a field that is not the run's own; empty: it is.

    Args:
        run: Without what it has from its defaults.
        defaults: Of the run.
        location: Of the field, from the top of the manifest.
    """
    path = ".".join(map(str, location[1:]))
    for source in defaults.sources if defaults else ():
        if any(f"{path}.".startswith(f"{field}.") for field in source.fields):
            whose = f"{source.kind} {source.name}"
            (template,) = _POD_TEMPLATE
            if tuple(location[1:2]) == _POD_TEMPLATE and _mapping(run.get("spec")).get(template):
                return f" (the run's {template} merged over that of {whose})"
            return f" (it is from {whose})"
    return ""


def names_storage(run: Object) -> bool:
    """Whether a run says where it keeps what it makes."""
    return _mapping(_mapping(run.get("spec")).get("storage")).get("uri") is not None


def exceeded(spec: RunSpec, defaults: AppliedDefaults | None) -> list[str]:
    """A sentence for each limit that a run does not keep to."""
    return [
        sentence
        for source in (defaults.sources if defaults else ())
        if source.maximum is not None
        for sentence in _exceeded(spec, source.maximum, f"{source.kind} {source.name}")
    ]


def _exceeded(spec: RunSpec, most: Maximum, whose: str) -> Iterator[str]:
    workers = spec.asked_workers
    if most.workers is not None and workers > most.workers:
        field = "workers.count times sweep.concurrency" if spec.sweep else "workers.count"
        yield f"spec.{field} is {workers}; {whose} allows at most {most.workers} workers"
    wanted = _accelerators(spec)
    if most.accelerators is not None and wanted > most.accelerators:
        yield (
            f"spec.workers asks for {wanted} accelerators in all; {whose} allows at most "
            f"{most.accelerators}"
        )
    deadline, longest = spec.active_deadline_seconds, most.active_deadline_seconds
    if longest is not None and (deadline is None or deadline > longest):
        yield (
            f"spec.activeDeadlineSeconds is {deadline or 'missing'}; {whose} allows at most "
            f"{longest}; write that or less"
        )
    budget, largest = spec.budget, most.budget_amount
    if largest is not None and (budget is None or budget.amount > largest):
        yield (
            f"spec.budget.amount is {'missing' if budget is None else f'{budget.amount:g}'}; "
            f"{whose} allows at most {largest:g}; write that or less"
        )
    elif largest is not None and budget is not None and budget.action != "Suspend":
        yield (
            f"spec.budget.action is {budget.action}; {whose} has a largest budget, which needs "
            "action: Suspend"
        )


def _accelerators(spec: RunSpec) -> int:
    each = spec.workers.accelerator.count if spec.workers.accelerator else 0
    return each * (spec.asked_workers + spec.workers.standby * spec.workers.per_pod)


def within_limits(spec: RunSpec, defaults: AppliedDefaults | None) -> RunSpec:
    """The spec of a run that goes on although an edit exceeds a limit: with the limit itself."""
    changes: dict[str, Any] = {}
    for most in [source.maximum for source in defaults.sources] if defaults else ():
        if most is not None and most.active_deadline_seconds is not None:
            now = changes.get("active_deadline_seconds", spec.active_deadline_seconds)
            changes["active_deadline_seconds"] = min(
                most.active_deadline_seconds, now or most.active_deadline_seconds
            )
        if most is not None and most.budget_amount is not None:
            budget = changes.get("budget", spec.budget)
            amount = most.budget_amount if budget is None else budget.amount
            # Constructed: a stored object may have a limit of 0, which is no budget.
            changes["budget"] = RunBudget.model_construct(
                amount=min(most.budget_amount, amount), action="Suspend"
            )
    return spec.model_copy(update=changes)


class BudgetLimit(NamedTuple):
    """The largest budget.amount that a run may have."""

    amount: float
    whose: str
    """Kind and name of the object that says so."""


def largest_budget(defaults: AppliedDefaults | None) -> BudgetLimit | None:
    """The lowest limit of budget.amount; None: any amount is taken."""
    limits = [
        BudgetLimit(source.maximum.budget_amount, f"{source.kind} {source.name}")
        for source in (defaults.sources if defaults else ())
        if source.maximum is not None and source.maximum.budget_amount is not None
    ]
    return min(limits, default=None)


def _over(base: Mapping[str, Any], spec: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """The fields of a level over those of the level below."""
    found = dict(spec)
    for name, below in base.items():
        own, here = spec.get(name), (*path, name)
        if _goes_with_another(here, spec):
            continue
        if own is None:
            found[name] = below
        elif isinstance(own, Mapping) and isinstance(below, Mapping):
            found[name] = (
                merge_pod_template(below, own, keep_nulls=True)
                if here == _POD_TEMPLATE
                else _over(below, own, here)
            )
    return found


def _goes_with_another(path: Path, beside: Mapping[str, Any]) -> bool:
    """Whether a field is not from a lower level, for the one that it goes with is set."""
    return any(
        anchor[:-1] == path[:-1] and path[-1] in names and beside.get(anchor[-1]) is not None
        for anchor, names in _TOGETHER.items()
    )


def _is_hidden(path: Path, level: Mapping[str, Any]) -> bool:
    """Whether a level above sets a field, or one that it goes with."""
    for place, name in enumerate(path):
        if _goes_with_another(path[: place + 1], level):
            return True
        if level.get(name) is None or path == _POD_TEMPLATE:
            return False
        if not isinstance(level[name], Mapping):
            return True
        level = level[name]
    return True


def _has(spec: Mapping[str, Any], path: Path) -> bool:
    for name in path[:-1]:
        spec = _mapping(spec.get(name))
    return path[-1] in spec


def _set_fields(spec: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """The fields that an object sets; of the pod template none by itself."""
    for name, value in spec.items():
        here = (*path, name)
        if isinstance(value, Mapping) and here != _POD_TEMPLATE:
            yield from _set_fields(value, here)
        elif value is not None:
            yield here


def _known(spec: Mapping[str, Any], tree: FieldTree) -> dict[str, Any]:
    """What of an object's spec can be a default."""
    return {
        name: value if below is None else _known(_mapping(value), below)
        for name, below in tree.items()
        if (value := spec.get(name)) is not None
    }


def _without_queue(spec: Mapping[str, Any]) -> dict[str, Any]:
    scheduling = _mapping(spec.get("scheduling"))
    if "queue" not in scheduling:
        return dict(spec)
    rest = {name: value for name, value in scheduling.items() if name != "queue"}
    return {**spec, "scheduling": rest}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maximum(found: Object) -> Maximum | None:
    """The limits of an object, without those that this version does not take: of another one."""
    limits = _mapping(found.get("spec")).get("maximum")
    if limits is None:
        return None
    known = {name: limit for name, limit in _mapping(limits).items() if limit is not None}
    try:
        return Maximum.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = {fault["loc"][0] for fault in error.errors(include_url=False)}
        rest = {name: limit for name, limit in known.items() if name not in wrong}
        return Maximum.model_validate(rest, by_alias=True, by_name=False)
