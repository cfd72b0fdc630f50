"""Pure: the JSON patch by which a live RayCluster's replacement pods keep off lost nodes."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def avoiding(ray_cluster: Mapping[str, Any], hostnames: Sequence[str]) -> list[dict[str, Any]]:
    """Operations that add `hostname NotIn hostnames` to the head's and every worker group's pods.

    Empty, if all of it is there already. Each change is guarded by a test of the group's name, for
    a patch of a list goes by position.
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
    old = group["template"]["spec"].get("affinity", {})
    new = _kept_off(old, hostnames)
    if new == old:
        return []
    return [{"op": "add", "path": f"{at}/template/spec/affinity", "value": new}]


def _kept_off(affinity: Mapping[str, Any], hostnames: Sequence[str]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(affinity))
    required = changed.setdefault("nodeAffinity", {}).setdefault(REQUIRED, {})
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:  # they are alternatives, so each of them has to say it
        expressions = term.setdefault("matchExpressions", [])
        ours = next((e for e in expressions if _is_ours(e)), None)
        if ours is None:
            ours = {"key": HOSTNAME, "operator": "NotIn", "values": []}
            expressions.append(ours)
        ours["values"] += [name for name in hostnames if name not in ours["values"]]
    return changed


def _is_ours(expression: Mapping[str, Any]) -> bool:
    return (expression["key"], expression["operator"]) == (HOSTNAME, "NotIn")
