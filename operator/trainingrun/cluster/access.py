"""The permissions that the operator needs, as data: the chart's roles are compared with it.

Nothing here is read at run time. Whoever adds a call to the API server adds its verb here, and the
chart's test then says which role lacks it.
"""

from typing import Any

Rule = dict[str, Any]
"""One PolicyRule of a Kubernetes Role, in the API's own words."""

RUN_RULES: list[Rule] = [
    {
        "apiGroups": ["trainingrun.dev"],
        "resources": ["trainingruns"],
        # delete: ttlSecondsAfterFinished
        "verbs": ["list", "watch", "delete"],
    },
    {
        "apiGroups": ["trainingrun.dev"],
        "resources": ["trainingruns/status"],
        "verbs": ["update"],
    },
    {
        "apiGroups": ["ray.io"],
        "resources": ["rayjobs"],
        # create and patch: server-side apply needs both
        "verbs": ["list", "watch", "create", "patch", "delete"],
    },
    {
        "apiGroups": ["ray.io"],
        "resources": ["rayclusters"],
        # patch: keep replacement pods off lost nodes
        "verbs": ["list", "watch", "patch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["pods"],
        # delete: pods of lost nodes, whose kubelet will not confirm their end
        "verbs": ["list", "watch", "delete"],
    },
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        # Never get or list: tokens are derived, so users' secrets stay unread.
        "verbs": ["create"],
    },
    {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        # get: whose one is that has the name of ours
        "verbs": ["get", "create", "patch"],
    },
    {
        "apiGroups": [""],
        "resources": ["events"],
        "verbs": ["create"],
    },
]
"""What runs need: in a ClusterRole, or with a list of namespaces in a Role in each of them."""

CLUSTER_RULES: list[Rule] = [
    {
        "apiGroups": [""],
        "resources": ["nodes"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": ["apiextensions.k8s.io"],
        "resources": ["customresourcedefinitions"],
        "resourceNames": [
            "rayclusters.ray.io",
            "rayjobs.ray.io",
            "trainingruns.trainingrun.dev",
        ],
        # list, watch: KubeRay may be installed later
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["clusterrolebindings"],
        # Tells KubeRay's namespace, which no label could be trusted to tell.
        "resourceNames": ["kuberay-operator"],
        "verbs": ["get"],
    },
]
"""What is not in any namespace. Without it (an operator confined to namespaces) nodes count as
unknown, KubeRay's version is not checked and its namespace is what the settings say, and runs
still work. Of a CRD: whether a 404 on its objects means that it is not installed."""

NODE_LEASE_RULES: list[Rule] = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        # No watch: they are renewed by every node every 10 s.
        "verbs": ["get"],
    },
]
"""A Role in kube-node-lease; optional in the same way: lost nodes are then noticed later."""

OPERATOR_RULES: list[Rule] = [
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["trainingrun-operator-key"],
        # update: a key that was rotated out, or broken, gets a successor
        "verbs": ["get", "update"],
    },
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        # create cannot be limited to a name
        "verbs": ["create"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["trainingrun-operator"],
        "verbs": ["get", "update"],
    },
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        # create cannot be limited to a name
        "verbs": ["create"],
    },
]
"""A Role in the operator's own namespace: the key from which the runs' tokens are derived, and the
Lease (`lease_name`) by which one of several operators leads."""
