"""The TrainingRuns that `retry` and `export` make of another one. Pure."""

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..api.errors import RunError
from ..api.parse import InvalidRunError, parse
from ..api.v1alpha1 import API_VERSION, KIND, KUEUE, MAX_NAME_LENGTH
from ..rendering import defaults, names
from . import yaml_text
from .defaults import Lookup, no_defaults

_SUFFIX = re.compile(r"-retry-[0-9]+$")


def free_name(name: str, taken: Collection[str]) -> str:
    """`<name>-retry-1`, or the first higher number whose name is free.

    A retry of `digits-retry-1` is `digits-retry-2`. A name that is too long is cut before its
    suffix.
    """
    base, number = _SUFFIX.sub("", name), 1
    while True:
        suffix = f"-retry-{number}"
        found = base[: MAX_NAME_LENGTH - len(suffix)].rstrip("-") + suffix
        if found not in taken:
            return found
        number += 1


def retried(
    run: Mapping[str, Any],
    name: str,
    step: int | None,
    settings: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    lookup: Lookup = no_defaults,
) -> dict[str, Any]:
    """The manifest of a new run with the spec of `run`, which begins from its checkpoint.

    Where `run` has none, the new one begins where that one began; the trials of a sweep begin
    anew. The source is named by its folder, so that the former run may be deleted at once. Labels
    and annotations of tools such as Helm and Argo CD, which mean the former object alone, are left
    out; Kueue's labels stay, for without them the new run would begin beside its queue.

    Args:
        run: The TrainingRun as the API server gives it.
        name: The new one's name.
        step: Step of the checkpoint; None: the newest intact one.
        settings: Changes of the spec, each `path=value` with the value in YAML; null removes,
                and no value is an empty text.
        changes: Changes of the spec as an object; None in it removes.
        lookup: Gives the defaults with which the new run has to be valid; they stay out of it.

    Raises:
        RunError: A setting cannot be used, or a step is wanted of a sweep or of a run without a
            checkpoint.
    """
    spec = _begun_from(run, step)
    spec.pop("suspend", None)
    spec = merged(spec, changes or {})
    for setting in settings:
        _set(spec, setting)
    storage = spec.get("storage")
    if isinstance(storage, dict) and storage.get("restoreFrom") is None:
        storage.pop("restoreFrom", None)
    manifest = _manifest(run, name, spec)
    try:
        parse(defaults.resolved(manifest, defaults.applied(manifest, lookup(manifest))))
    except InvalidRunError as error:
        raise RunError(str(error)) from None
    return manifest


def exported(run: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with which a run goes on in another cluster, or in this one once it is gone.

    It is that of a retry of the same name; a run that is suspended stays so.

    Args:
        run: The TrainingRun as the API server gives it, with what it has from its defaults.
    """
    return _manifest(run, run["metadata"]["name"], _begun_from(run, None))


def _begun_from(run: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """The run's spec, with where its successor begins."""
    spec = copy.deepcopy(dict(run["spec"]))
    source = _restore_from(run, step)
    spec["storage"] = {**(spec.get("storage") or {}), "restoreFrom": source}
    if source is None:
        del spec["storage"]["restoreFrom"]
    return spec


def _manifest(run: Mapping[str, Any], name: str, spec: dict[str, Any]) -> dict[str, Any]:
    former = run["metadata"]
    labels = former.get("labels") or {}
    metadata = {
        "labels": {
            **names.inherited(labels),
            **{key: value for key, value in labels.items() if key.startswith(f"{KUEUE}/")},
        },
        "annotations": names.inherited(former.get("annotations") or {}),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": former["namespace"],
            **{kind: found for kind, found in metadata.items() if found},
        },
        "spec": spec,
    }


def merged(base: Any, changes: Mapping[str, Any], *, keep_none: bool = False) -> dict[str, Any]:
    """`changes` over an object, as a JSON merge patch (RFC 7396): None removes, lists replace.

    With `keep_none` it stays, and the result is such changes itself.
    """
    found = dict(base) if isinstance(base, Mapping) else {}
    for key, value in changes.items():
        if isinstance(value, Mapping):
            found[key] = merged(found.get(key), value, keep_none=keep_none)
        elif value is None and not keep_none:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def begins(manifest: Mapping[str, Any]) -> str:
    """Where a run begins, in words."""
    # `--set storage=null` leaves all of it to the defaults.
    source = (manifest["spec"].get("storage") or {}).get("restoreFrom")
    if not source:
        return "with new trials" if manifest["spec"].get("sweep") else "at step 0"
    which = f"step {source['step']}" if "step" in source else "the newest intact checkpoint"
    return f"from {which} of {source.get('uri') or source.get('run')}"


def _restore_from(run: Mapping[str, Any], step: int | None) -> dict[str, Any] | None:
    name, status = run["metadata"]["name"], run.get("status") or {}
    storage = run["spec"].get("storage") or {}
    if run["spec"].get("sweep") is not None:
        if step is not None:
            raise RunError(
                f"--step is {step}, and {name} is a sweep, whose trials begin anew; leave --step "
                "out"
            )
        return None  # the API refuses restoreFrom beside sweep
    if status.get("checkpoint") and storage.get("uri"):
        folder = names.folder_of(run)
        return {"uri": folder, **({"step": step} if step is not None else {})}
    if step is not None:
        raise RunError(
            f"--step is {step}, and {name} has no checkpoint; leave --step out to begin where "
            f"{name} began"
        )
    began: dict[str, Any] | None = storage.get("restoreFrom")
    found = status.get("restoredFrom")
    if began is None or found is None:
        return began
    # The newest checkpoint there may be another one by now.
    restored = found.get("step", began.get("step"))
    return {"uri": found["uri"], **({"step": restored} if restored is not None else {})}


def _set(spec: dict[str, Any], setting: str) -> None:
    path, equals, text = setting.partition("=")
    path = path.strip().removeprefix("spec.")
    parts = path.split(".")
    if not equals or not all(parts):
        raise RunError(f"--set {setting} is no setting; write one such as training.config.lr=0.01")
    try:
        value = _value(text)
    except yaml_text.NotYamlError:
        raise RunError(f"--set {path}: {text} is not YAML; quote it if it is a text") from None
    place: Any = spec
    for depth, part in enumerate(parts[:-1]):
        if isinstance(place, dict):
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
        else:
            place = place[_index(place, part, path, parts[:depth])]
    last = parts[-1]
    if not isinstance(place, dict):
        place[_index(place, last, path, parts[:-1])] = value
    elif value is None:
        place.pop(last, None)
    else:
        place[last] = value


def _value(text: str) -> Any:
    value = yaml_text.value(text)
    # Nothing, or a comment, is null in YAML, and here a text.
    return text if value is None and text.strip().lower() not in ("null", "~") else value


def _index(place: Any, part: str, path: str, parents: Sequence[str]) -> int:
    if isinstance(place, list) and part.isdecimal() and int(part) < len(place):
        return int(part)
    parent = ".".join(parents)
    what = f"a list of {len(place)}, from 0" if isinstance(place, list) else "not a mapping"
    raise RunError(f"--set {path}: there is no {part}, for {parent} is {what}; correct the path")
