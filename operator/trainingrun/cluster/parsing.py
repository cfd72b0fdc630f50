"""A TrainingRun as the API server gives it -> the model, whatever is in it.

One object that an older CRD let through must not stop the others, nor lose its own history.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..api.defaults import AppliedDefaults
from ..api.parse import explain
from ..api.status import RunStatus
from ..api.storage_spec import Storage
from ..api.training_spec import Training
from ..api.v1alpha1 import ObjectMeta, RunSpec, TrainingRun
from ..rendering import defaults

PLACEHOLDER = RunSpec(
    training=Training(function="unusable:spec"), storage=Storage(uri="s3://unusable")
)
"""Stands for what of a spec cannot be used; nothing is ever rendered from it."""

MOST_SENTENCES = 5
"""About a spec that cannot be used."""

MOST_FAULTS = 200
"""Parts of a spec or status that are left out one by one, before all of it is."""


def parse(
    raw: Mapping[str, Any], current: AppliedDefaults | None = None
) -> tuple[TrainingRun, str | None]:
    """The run, and why its spec cannot be used (None: it can).

    The spec has what the run has from its defaults: those that its status keeps, else `current`,
    which count for a run that has not begun. An edit that exceeds a limit counts up to it.

    A status that this version does not understand in full is read as far as it does, and so is a
    spec: by the rest of it, such as `suspend` and the deadline, an attempt that runs continues.
    """
    status = _status(raw.get("status") or {})
    applied = status.defaults or current
    own, raw = raw, defaults.resolved(raw, applied)
    try:
        run = TrainingRun.model_validate({**raw, "status": {}})
    except ValidationError as error:
        metadata = raw["metadata"]
        bare = TrainingRun.model_construct(
            metadata=ObjectMeta.model_construct(
                name=metadata["name"],
                namespace=metadata["namespace"],
                uid=metadata["uid"],
                generation=metadata.get("generation", 0),
                resource_version=metadata["resourceVersion"],
                creation_timestamp=metadata.get("creationTimestamp"),
                deletion_timestamp=metadata.get("deletionTimestamp"),
                finalizers=metadata.get("finalizers") or [],
            ),
            spec=_spec(raw.get("spec")),
            status=status,
        )
        found = explain(error)[:MOST_SENTENCES]
        return bare, "; ".join(
            each.sentence + defaults.origin(own, applied, each.location) for each in found
        )
    exceeded = defaults.exceeded(run.spec, applied)
    spec = defaults.within_limits(run.spec, applied) if exceeded else run.spec
    return run.model_copy(update={"status": status, "spec": spec}), "; ".join(exceeded) or None


def _spec(raw: Any) -> RunSpec:
    if not isinstance(raw, Mapping):
        return PLACEHOLDER
    required = PLACEHOLDER.to_dict()
    rest = {**required, **copy.deepcopy(dict(raw))}
    for _ in range(MOST_FAULTS):
        try:
            return RunSpec.model_validate(rest)
        except ValidationError as error:
            location = error.errors(include_url=False, include_input=False)[-1]["loc"]
            if location and location[0] in ("training", "storage"):
                rest[str(location[0])] = required[str(location[0])]
            else:
                _drop(rest, location)
    return PLACEHOLDER


def _status(raw: Mapping[str, Any]) -> RunStatus:
    rest = copy.deepcopy(dict(raw))
    for _ in range(MOST_FAULTS):
        try:
            return RunStatus.model_validate(rest)
        except ValidationError as error:
            # One at a time: taking an element out of a list shifts those behind it.
            _drop(rest, error.errors(include_url=False, include_input=False)[-1]["loc"])
    return RunStatus()


def _drop(value: Any, location: Sequence[str | int]) -> None:
    """Takes out what is at `location`; where that is missing, what it is missing from."""
    path = [value]
    for step in location:
        try:
            path.append(path[-1][step])
        except (KeyError, IndexError, TypeError):
            break
    if len(path) > 1:
        del path[-2][location[len(path) - 2]]
