"""What the operator may do in the cluster, as rules of Roles.

Whoever adds a call to the API server adds its verb here: the chart's test then says which role
lacks it, and the operator of the tests has no other rights.
"""

from collections.abc import Sequence
from typing import Any

from trainingrun.api.defaults import CLUSTER_DEFAULTS_PLURAL, DEFAULTS_NAME, DEFAULTS_PLURAL

Rule = dict[str, Any]
"""One PolicyRule of a Kubernetes Role, as the API spells it."""


def _rule(group: str, resource: str, *verbs: str, names: Sequence[str] = ()) -> Rule:
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **only, "verbs": list(verbs)}


RUN_RULES: list[Rule] = [
    # delete: ttlSecondsAfterFinished
    _rule("trainingrun.dev", "trainingruns", "list", "watch", "delete"),
    _rule("trainingrun.dev", "trainingruns/status", "update"),
    # before the first attempt of a run; optional: runs then have no defaults and no limits
    _rule("trainingrun.dev", DEFAULTS_PLURAL, "get", names=(DEFAULTS_NAME,)),
    # create and patch: server-side apply needs both
    _rule("ray.io", "rayjobs", "list", "watch", "create", "patch", "delete"),
    # patch: keep replacement pods off lost nodes
    _rule("ray.io", "rayclusters", "list", "watch", "patch", "delete"),
    # delete: pods of lost nodes, whose kubelet will not confirm their end
    _rule("", "pods", "list", "watch", "delete"),
    # Never get or list: tokens are derived, so users' secrets stay unread; but NOTIFICATION_RULES.
    _rule("", "secrets", "create"),
    # get: whose one is that has the name of ours, and whether ours is as it was made
    _rule("networking.k8s.io", "networkpolicies", "get", "create", "patch"),
    _rule("", "events", "create"),
]
"""What runs need: in a ClusterRole, or with a list of namespaces in a Role in each of them."""

QUEUE_RULES: list[Rule] = [_rule("kueue.x-k8s.io", "workloads", "list")]
"""Beside RUN_RULES; optional: without it the status does not say what a queued run waits for."""

NOTIFICATION_RULES: list[Rule] = [_rule("", "secrets", "get", names=("trainingrun-notifications",))]
"""Beside RUN_RULES, where hosts are named to which notifications may be sent: the Secrets with
their addresses, of the names in `ReconcileSettings.notification_secret_names`."""

CLUSTER_RULES: list[Rule] = [
    _rule("trainingrun.dev", CLUSTER_DEFAULTS_PLURAL, "get", names=(DEFAULTS_NAME,)),
    _rule("", "nodes", "list", "watch"),
    _rule(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "get",
        "list",  # and watch: KubeRay may be installed later
        "watch",
        names=("rayclusters.ray.io", "rayjobs.ray.io", "trainingruns.trainingrun.dev"),
    ),
    # Names KubeRay's namespace; a label is not proof of it.
    _rule("rbac.authorization.k8s.io", "clusterrolebindings", "get", names=("kuberay-operator",)),
]
"""What is not in any namespace. Without it (an operator confined to namespaces) nodes count as
unknown, KubeRay's version is not checked, its namespace is what the settings say, runs have no
defaults and limits of the cluster, and still work. Of a CRD: whether a 404 on its objects means
that it is not installed."""

# No watch: they are renewed by every node every 10 s.
NODE_LEASE_RULES: list[Rule] = [_rule("coordination.k8s.io", "leases", "get")]
"""A Role in kube-node-lease; optional in the same way: lost nodes are then noticed later."""

OPERATOR_RULES: list[Rule] = [
    # update: a key that was rotated out, or broken, gets a successor
    _rule("", "secrets", "get", "update", names=("trainingrun-operator-key",)),
    _rule("", "secrets", "create"),  # which cannot be limited to a name
    _rule("coordination.k8s.io", "leases", "get", "update", names=("trainingrun-operator",)),
    _rule("coordination.k8s.io", "leases", "create"),  # which cannot be limited to a name
]
"""A Role in the operator's own namespace: the key from which the runs' tokens are derived, and the
Lease (`lease_name`) by which one of several operators leads."""
