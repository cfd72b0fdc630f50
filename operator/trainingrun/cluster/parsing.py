"""A TrainingRun as the API server gives it -> the model, whatever is in it.

One object that an older CRD let through must not stop the others, nor lose its own history.
"""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
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

_UNTYPED = (
    ("training", "config"),
    ("training", "env"),
    (_TEMPLATE,),
    ("head", _TEMPLATE),
    ("workers", _TEMPLATE),
)
"""Where in a spec the CRD keeps fields of which it knows no types, and which cannot change."""
_DEPTH = 16
"""Levels that are looked at: the CRD knows types of the first ones, and compares all below."""
_RENAMED = (
    "training.config, training.env or a podTemplate has other fields than when the run began, "
    "which cannot change; write those of before, or delete this TrainingRun and create a new one"
)


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
    raw, run = _read({**raw, "status": {}})
    if isinstance(run, ValidationError):
        found = explain(run)[:MOST_SENTENCES]
        return _bare(raw, applied, status), "; ".join(
            each.sentence + defaults.origin(own, applied, each.location) for each in found
        )
    if status.seen.get("fieldNames") not in (None, field_names(own)):
        return _bare(raw, applied, status), _RENAMED
    exceeded = defaults.exceeded(run.spec, applied)
    spec = defaults.within_limits(run.spec, applied) if exceeded else run.spec
    return run.model_copy(update={"status": status, "spec": spec}), "; ".join(exceeded) or None


def _read(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], TrainingRun | ValidationError]:
    """The run, and what it was read from: without fields that this version does not know.

    A CRD of a later version fills their defaults into every run that is stored, also those in which
    nobody wrote them, and may outlive its operator. A misspelt field is in none: what no CRD knows
    the API server has pruned. One error names all such fields, so that one more try is enough.
    """
    try:
        return raw, TrainingRun.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        unknown = [each["loc"] for each in details if each["type"] == "extra_forbidden"]
        if not unknown:
            return raw, error
    rest = copy.deepcopy(dict(raw))
    salvage.drop(rest, unknown)
    try:
        return rest, TrainingRun.model_validate(rest)
    except ValidationError as error:
        return rest, error


def _bare(
    raw: Mapping[str, Any], applied: AppliedDefaults | None, status: RunStatus
) -> TrainingRun:
    metadata = raw["metadata"]
    return TrainingRun.model_construct(
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


def field_names(raw: Mapping[str, Any]) -> str:
    """A digest of the names of fields that cannot change and of which the CRD knows no types.

    The API server's `self == oldSelf` compares such an object by its size and by the fields that
    both have, so that it takes another field in the place of one that is gone
    (`unstructuredMap.Equal` of k8s.io/apiserver/pkg/cel/common, 1.34 and 1.37;
    findings/cel_equality_of_unknown_fields.sh). Another value of a field it refuses.
    """
    spec, digest = raw.get("spec"), hashlib.sha256()
    for path in _UNTYPED:
        part: Any = spec
        for name in path:
            part = part.get(name) if isinstance(part, Mapping) else None
        digest.update(json.dumps(list(_names(part, _DEPTH))).encode())
    return digest.hexdigest()[:16]


def _names(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, Mapping) and depth:
        for name in sorted(value):
            yield [name, *_names(value[name], depth - 1)]
    elif isinstance(value, list) and depth:
        for item in value:
            yield list(_names(item, depth - 1))


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
