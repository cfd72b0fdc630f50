"""A TrainingRun as the API server gives it -> the model, whatever is in it.

One object that an older CRD let through must not stop the others, nor lose its own history.
"""

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..api import salvage
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

_TEMPLATE = "podTemplate"


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
                deletion_timestamp=metadata.get("deletionTimestamp"),
                finalizers=metadata.get("finalizers") or [],
            ),
            # The limits hold, whatever else is wrong with an edit.
            spec=defaults.within_limits(_spec(raw.get("spec")), applied),
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
    """What can be read of a spec that is wrong; nothing is rendered from it."""
    if not isinstance(raw, Mapping):
        return PLACEHOLDER
    required = PLACEHOLDER.to_dict()
    # What takes long to check, and is for pods that are made.
    rest = {**required, **{key: item for key, item in raw.items() if key != _TEMPLATE}}
    for part in ("head", "workers"):
        if isinstance(rest.get(part), Mapping):
            rest[part] = {key: item for key, item in rest[part].items() if key != _TEMPLATE}
    rest = copy.deepcopy(rest)
    for _ in range(salvage.MOST_ROUNDS):
        try:
            return RunSpec.model_validate(rest)
        except ValidationError as error:
            locations = list(salvage.locations(error))
            for part in ("training", "storage"):
                if any(location[:1] == (part,) for location in locations):
                    rest[part] = required[part]
            salvage.drop(
                rest, [at for at in locations if at[:1] not in (("training",), ("storage",))]
            )
    return PLACEHOLDER


def _status(raw: Mapping[str, Any]) -> RunStatus:
    return salvage.read(RunStatus, raw) or RunStatus()
