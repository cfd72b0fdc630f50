"""Pure: the JSON patch by which a live RayCluster's replacement pods keep off some nodes."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..rendering.scheduling import REQUIRED, exclusion, is_exclusion


def exclusion_patch(
    ray_cluster: Mapping[str, Any], hostnames: Sequence[str]
) -> list[dict[str, Any]]:
    """Operations after which the head's and every worker group's pods exclude these hostnames.

    Only an exclusion of ours is changed, and taken away where no hostname is given; a user's own
    expressions stay. Empty, if there is nothing to change. Each change is guarded by a test of the
    group's name, for a patch of a list goes by position.
    """
    spec = ray_cluster["spec"]
    operations = _operations("/spec/headGroupSpec", spec["headGroupSpec"], hostnames)
    for number, group in enumerate(spec.get("workerGroupSpecs", [])):
        at = f"/spec/workerGroupSpecs/{number}"
        changes = _operations(at, group, hostnames)
        if changes:
            guard = {"op": "test", "path": f"{at}/groupName", "value": group["groupName"]}
            operations += [guard, *changes]
    return operations


def _operations(
    at: str, group: Mapping[str, Any], hostnames: Sequence[str]
) -> list[dict[str, Any]]:
    old = group["template"]["spec"].get("affinity") or {}
    new = _excluding(old, hostnames)
    if new == old:
        return []
    path = f"{at}/template/spec/affinity"
    return [{"op": "add", "path": path, "value": new} if new else {"op": "remove", "path": path}]


def _excluding(affinity: Mapping[str, Any], hostnames: Sequence[str]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(affinity))
    node = changed.get("nodeAffinity") or {}
    terms = list((node.get(REQUIRED) or {}).get("nodeSelectorTerms") or ())
    if hostnames:
        ours = exclusion(tuple(hostnames))
        # Terms are alternatives, so each of them has to say it.
        terms = [_with(ours, _without_ours(term)) for term in terms or [{}]]
    else:
        # An empty term, which is left of one that said nothing else, would match no node at all.
        terms = [rest for term in terms if (rest := _without_ours(term)) or not term]
    _set(node, REQUIRED, {"nodeSelectorTerms": terms} if terms else {})
    _set(changed, "nodeAffinity", node)
    return changed


def _without_ours(term: Mapping[str, Any]) -> dict[str, Any]:
    if not any(is_exclusion(found) for found in term.get("matchExpressions") or ()):
        return dict(term)
    kept = [found for found in term["matchExpressions"] if not is_exclusion(found)]
    rest = {key: value for key, value in term.items() if key != "matchExpressions"}
    return {**rest, "matchExpressions": kept} if kept else rest


def _with(requirement: Mapping[str, Any], term: Mapping[str, Any]) -> dict[str, Any]:
    return {**term, "matchExpressions": [*term.get("matchExpressions", []), requirement]}


def _set(parent: dict[str, Any], key: str, value: Mapping[str, Any]) -> None:
    if value:
        parent[key] = value
    else:
        parent.pop(key, None)
