"""How a podTemplate is merged over what is rendered.

As Kubernetes' own strategic merge: maps merge by key, null removes a key, lists of named things
merge by name, any other list replaces, and of the ways to probe a container the last one counts.
Three differences, because losing what is rendered would break the run: tolerations and envFrom are
added, pod affinity terms are added, and node selector terms must hold together with the rendered
ones.

Nothing is refused here: what has the wrong shape replaces what was rendered, and the API server
then says what is wrong with it. All other namespaces wait for a merge: so no entry of a list is
compared with each one of another list.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainingrun_protocol.variable_references import names_in

from ..api.pod_schema import MOST_SELECTOR_TEXT, MOST_TERMS, selector_text

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
}
"""Lists whose items are merged with the item of the same key; ports, of the same protocol too."""

_REPLACE_KEYS = {"env": "name", "volumes": "name"}
"""Lists whose items are replaced whole: two kinds of value or of volume in one are refused."""

_REPLACE_ALL_KEYS = {"topologySpreadConstraints": "topologyKey"}
"""Lists in which several items may have one key: all those of the base are replaced by all those of
the overlay."""

_HANDLED = {"livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop"}
_HANDLERS = {"exec", "grpc", "httpGet", "sleep", "tcpSocket"}
"""Ways to do what is in `_HANDLED`, of which Kubernetes takes one."""

_MOVED = object()
"""In the place of an item that is further back now."""

_text = json.JSONEncoder(sort_keys=True).encode
"""The same of values that are equal."""

_Term = Mapping[str, list[tuple[str, Any]]]
"""A node selector term: the requirements of each field, with their texts."""

_ADDED = {
    "envFrom",
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
}
"""Lists that are added at the end. (The required node affinity is a map, so it is not meant.)"""


def merge(
    base: Mapping[str, Any], overlay: Mapping[str, Any], keep_nulls: bool = False
) -> dict[str, Any]:
    """`overlay` over `base`, as a new object that shares nothing with either.

    With `keep_nulls` its nulls stay: the result is itself an overlay, and neither is checked yet.
    """
    merged = {key: _copy(value) for key, value in base.items() if key not in overlay}
    result: dict[str, Any] = {}
    # In the base's order, so that an overlay does not shuffle a manifest.
    for key in [*base, *(key for key in overlay if key not in base)]:
        if key not in overlay:
            result[key] = merged[key]
        elif overlay[key] is not None:
            result[key] = _value(key, base.get(key), overlay[key], keep_nulls)
        elif keep_nulls:
            result[key] = None
    return result


def merge_pod_template(
    base: Mapping[str, Any], overlay: Mapping[str, Any], keep_nulls: bool = False
) -> dict[str, Any]:
    """A user's podTemplate over a rendered one: tolerations are added too."""
    result = merge(base, overlay, keep_nulls)
    spec, wanted = base.get("spec"), overlay.get("spec")
    if isinstance(spec, Mapping) and isinstance(wanted, Mapping):
        tolerations, more = spec.get("tolerations"), wanted.get("tolerations")
        if isinstance(tolerations, list) and isinstance(more, list):
            result["spec"]["tolerations"] = _copy([*tolerations, *_without(more, tolerations)])
    return result


def _copy(value: Any) -> Any:
    """As `copy.deepcopy` of what JSON can hold, in a quarter of its time: a run has ten of them."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _value(field: str, base: Any, overlay: Any, keep_nulls: bool) -> Any:
    if isinstance(overlay, Mapping):
        # An empty base still drops the overlay's nulls: they mean "no such key".
        below = base if isinstance(base, Mapping) else {}
        if field in _HANDLED and any(overlay.get(handler) is not None for handler in _HANDLERS):
            below = {key: item for key, item in below.items() if key not in _HANDLERS - {*overlay}}
        return merge(below, overlay, keep_nulls)
    if not (isinstance(base, list) and isinstance(overlay, list)):
        return _copy(overlay)
    if field in _ADDED:
        # Once each: a retry has what is rendered, or its defaults, in its own template already.
        return _copy([*_without(base, overlay), *overlay])
    if field == "nodeSelectorTerms":
        return _both(base, overlay, checked=not keep_nulls)
    if field in _MERGE_KEYS:
        return _by_key(base, overlay, _MERGE_KEYS[field], keep_nulls)
    if field in _REPLACE_KEYS:
        return _by_key(base, overlay, _REPLACE_KEYS[field])
    if field in _REPLACE_ALL_KEYS:
        key = _REPLACE_ALL_KEYS[field]
        names = {_name(item, key) for item in overlay} - {None}
        return _copy([*(item for item in base if _name(item, key) not in names), *overlay])
    return _copy(overlay)


def _without(items: list[Any], others: list[Any]) -> list[Any]:
    """The items that are not among the others."""
    known = {_text(item) for item in others}
    return [item for item in items if _text(item) not in known]


def _by_key(
    base: list[Any], overlay: list[Any], key: str, keep_nulls: bool | None = None
) -> list[Any]:
    """Items of one key merged, or (`keep_nulls` is None) replaced whole, at their places. Once: a
    second item of the overlay with that key is added, and refused where it may not be there twice.

    A variable whose value names one that is further back comes behind that: in front of it,
    `$(NAME)` would stay as it is.
    """
    result = [_copy(item) for item in base]
    places = {_name(item, key): place for place, item in enumerate(result)}
    last = dict(places)
    for item in overlay:
        name = _name(item, key)
        place = places.pop(name, None) if name is not None else None
        if place is not None and keep_nulls is not None:
            result[place] = merge(result[place], item, keep_nulls)
        elif place is not None and not _names_one_behind(item, place, last):
            result[place] = _copy(item)
        else:
            if place is not None:
                result[place] = _MOVED
            last[name] = len(result)
            result.append(_copy(item))
    return [item for item in result if item is not _MOVED]


def _names_one_behind(item: Mapping[str, Any], place: int, last: Mapping[Any, int]) -> bool:
    """Whether the value of a variable at a place names one whose place is further back."""
    value = item.get("value")
    names = names_in(value) if isinstance(value, str) else []
    return any(last.get(name, place) > place for name in names)


def _name(item: Any, key: str) -> str | int | tuple[int, str] | None:
    """What an item of a list goes by; None: it has no name that another one could have."""
    name = item.get(key) if isinstance(item, Mapping) else None
    if key == "containerPort" and isinstance(name, int):
        return name, str(item.get("protocol") or "TCP")
    return name if isinstance(name, str | int) else None


def _both(base: list[Any], overlay: list[Any], checked: bool) -> list[Any]:
    """Terms are alternatives, so all of both lists hold where every pair does.

    A pod is made of several checked templates, whose terms may be more than one of them may have.
    """
    base, overlay = ([_without_nulls(term) for term in terms] for terms in (base, overlay))
    terms = [*base, *overlay]
    if not checked and (_is_too_much(base) or _is_too_much(overlay)):
        return [_copy(term) for term in terms]  # more than a podTemplate may have, so refused
    if not base or not all(isinstance(term, Mapping) and _well_formed(term) for term in terms):
        return [_copy(term) for term in overlay]
    if not overlay:
        return [_copy(term) for term in base]
    ours, found = [_requirements(term) for term in base], []
    for term in overlay:
        theirs = _requirements(term)
        if any(_holds(theirs, each) for each in ours):
            found.append(_copy(term))  # as in a retry, which has the base's terms in its own
        else:
            found += [_joined(each, theirs) for each in ours]
    return found


def _is_too_much(terms: list[Any]) -> bool:
    return len(terms) > MOST_TERMS or selector_text(terms) > MOST_SELECTOR_TEXT


def _without_nulls(term: Any) -> Any:
    if not isinstance(term, Mapping):
        return term
    return {field: expressions for field, expressions in term.items() if expressions is not None}


def _requirements(term: Mapping[str, list[Any]]) -> _Term:
    return {field: [(_text(item), item) for item in items] for field, items in term.items()}


def _holds(term: _Term, other: _Term) -> bool:
    """Whether a term has all that the other one asks for; one that is empty selects no node."""
    return any(other.values()) and all(
        {text for text, _ in items} <= {text for text, _ in term.get(field, ())}
        for field, items in other.items()
    )


def _joined(ours: _Term, theirs: _Term) -> dict[str, Any]:
    found = {}
    for field in sorted({*ours, *theirs}):
        more = theirs.get(field, [])
        known = {text for text, _ in more}
        own = [item for text, item in ours.get(field, []) if text not in known]
        found[field] = _copy([*own, *(item for _, item in more)])
    return found


def _well_formed(term: Mapping[str, Any]) -> bool:
    return all(isinstance(expressions, list) for expressions in term.values())
