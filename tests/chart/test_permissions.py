"""The roles hold what the operator needs, by `support.permissions`, and not a verb more."""

import json
from typing import Any

import pytest

from support import permissions

Objects = list[dict[str, Any]]


def rules(objects: Objects, kind: str, name: str, namespace: str | None = None) -> Objects:
    return next(
        found["rules"]
        for found in objects
        if (found["kind"], found["metadata"]["name"]) == (kind, name)
        and found["metadata"].get("namespace") == namespace
    )


def as_set(listed: Objects) -> set[str]:
    """Rules regardless of order."""
    return {
        json.dumps({key: sorted(values) for key, values in rule.items()}, sort_keys=True)
        for rule in listed
    }


def test_one_cluster_role_holds_what_runs_need(render):
    granted = rules(render(), "ClusterRole", "trainingrun-operator")
    assert as_set(granted) == as_set(permissions.RUN_RULES + permissions.QUEUE_RULES)


def test_the_right_to_list_workloads_can_be_left_out(render):
    granted = rules(render("rbac.kueueReads=false"), "ClusterRole", "trainingrun-operator")
    assert as_set(granted) == as_set(permissions.RUN_RULES)


@pytest.mark.parametrize("namespaces", [[], ["team-a"]], ids=["all", "one"])
def test_secrets_with_addresses_may_be_read_only_where_notifications_are_on(render, namespaces):
    of = f"watchNamespaces={json.dumps(namespaces)}"
    kind, where = ("Role", "team-a") if namespaces else ("ClusterRole", None)
    on = render(of, 'notifications.allowedHosts=["hooks.example.com"]')
    granted = rules(on, kind, "trainingrun-operator", where)
    expected = permissions.RUN_RULES + permissions.QUEUE_RULES + permissions.NOTIFICATION_RULES
    assert as_set(granted) == as_set(expected)
    others = render(
        of,
        'notifications.allowedHosts=["hooks.example.com"]',
        'notifications.secretNames=["a", "b"]',
    )
    (readable,) = (
        rule["resourceNames"]
        for rule in rules(others, kind, "trainingrun-operator", where)
        if "secrets" in rule["resources"] and "get" in rule["verbs"]
    )
    assert readable == ["a", "b"]


def test_watched_namespaces_get_a_role_each_and_no_cluster_wide_one(render):
    objects = render('watchNamespaces=["team-a", "team-b"]')
    for namespace in ("team-a", "team-b"):
        granted = rules(objects, "Role", "trainingrun-operator", namespace)
        assert as_set(granted) == as_set(permissions.RUN_RULES + permissions.QUEUE_RULES)
    names = [found["metadata"]["name"] for found in objects if found["kind"] == "ClusterRole"]
    assert "trainingrun-operator" not in names


def test_what_lies_in_no_namespace_is_granted_apart(render):
    objects = render()
    granted = rules(objects, "ClusterRole", "trainingrun-operator-reads")
    assert as_set(granted) == as_set(permissions.CLUSTER_RULES)
    leases = rules(objects, "Role", "trainingrun-operator", "kube-node-lease")
    assert as_set(leases) == as_set(permissions.NODE_LEASE_RULES)


def test_an_operator_can_be_kept_to_its_namespaces(render):
    objects = render(
        'watchNamespaces=["team-a"]', "rbac.clusterReads=false", "rbac.aggregate=false"
    )
    assert not [found for found in objects if found["kind"].startswith("ClusterRole")]
    places = {found["metadata"].get("namespace") for found in objects if found["kind"] == "Role"}
    assert places == {"team-a", "trainingrun-system"}


def test_the_key_is_the_only_secret_that_can_be_read(render):
    objects = render()
    granted = rules(objects, "Role", "trainingrun-operator-key", "trainingrun-system")
    assert as_set(granted) == as_set(permissions.OPERATOR_RULES)
    for role in (found for found in objects if found["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            if "secrets" in rule["resources"] and {"get", "list", "watch"} & set(rule["verbs"]):
                assert rule.get("resourceNames") == ["trainingrun-operator-key"]


def test_watching_its_own_namespace_keeps_both_roles(render):
    objects = render('watchNamespaces=["trainingrun-system"]')
    own = [
        found["metadata"]["name"]
        for found in objects
        if found["kind"] == "Role" and found["metadata"]["namespace"] == "trainingrun-system"
    ]
    assert sorted(own) == ["trainingrun-operator", "trainingrun-operator-key"]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((), id="every namespace"),
        pytest.param(('watchNamespaces=["team-a"]',), id="one namespace"),
    ],
)
def test_every_binding_names_a_role_that_exists_and_the_operators_account(render, values):
    objects = render(*values)
    roles = {
        (found["kind"], found["metadata"]["name"], found["metadata"].get("namespace"))
        for found in objects
        if found["kind"] in ("Role", "ClusterRole")
    }
    for binding in (found for found in objects if found["kind"].endswith("RoleBinding")):
        referred = binding["roleRef"]
        namespace = binding["metadata"].get("namespace")
        assert (referred["kind"], referred["name"], namespace) in roles
        assert binding["subjects"] == [
            {
                "kind": "ServiceAccount",
                "name": "trainingrun-operator",
                "namespace": "trainingrun-system",
            }
        ]


def test_no_rule_holds_a_wildcard(everything):
    for role in (found for found in everything if found["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_people_get_the_runs_with_the_roles_that_they_have(render):
    reads = ["get", "list", "watch"]
    writes = ["create", "update", "patch", "delete", "deletecollection"]
    seen = ["trainingruns", "trainingruns/status", "trainingdefaults", "clustertrainingdefaults"]
    expected = {
        "viewer": ({"view", "edit", "admin"}, seen, reads),
        "editor": ({"edit", "admin"}, ["trainingruns"], writes),
        "admin": ({"admin"}, ["trainingdefaults"], writes),
    }
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    found = {}
    for role in (one for one in render() if one["kind"] == "ClusterRole"):
        labels = role["metadata"]["labels"]
        if to := {name.removeprefix(aggregate) for name in labels if name.startswith(aggregate)}:
            assert {labels[aggregate + name] for name in to} == {"true"}
            name = role["metadata"]["name"].removeprefix("trainingrun-operator-")
            found[name] = (to, as_set(role["rules"]))
    assert found == {
        name: (
            to,
            as_set([{"apiGroups": ["trainingrun.dev"], "resources": resources, "verbs": verbs}]),
        )
        for name, (to, resources, verbs) in expected.items()
    }


def test_only_the_operator_writes_a_status_and_only_admins_the_defaults(render):
    writers = {
        (role["metadata"]["name"], resource)
        for role in render()
        if role["kind"] in ("Role", "ClusterRole")
        for rule in role["rules"]
        for resource in rule["resources"]
        if resource.endswith(("/status", "trainingdefaults"))
        and set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert writers == {
        ("trainingrun-operator", "trainingruns/status"),
        ("trainingrun-operator-admin", "trainingdefaults"),
    }
