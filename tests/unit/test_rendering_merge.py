"""A podTemplate is merged last, loses nothing that the run needs, and changes nobody's input."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.goldens import a_run, rendered
from support.pod_fields import VALID
from trainingrun.rendering import RenderSettings, attempt
from trainingrun.rendering.merge import merge, merge_pod_template
from trainingrun.rendering.templating import render

NAMES = st.sampled_from(
    [
        "metadata",
        "spec",
        "labels",
        "containers",
        "lifecycle",
        "preStop",
        "exec",
        "env",
        "volumes",
        "tolerations",
        "affinity",
        "nodeAffinity",
        "ports",
        "envFrom",
        "nodeSelectorTerms",
        "matchExpressions",
        "name",
        "value",
    ]
)
TEXT = st.text("a'\"{}\\$\n\t\x7f\u2028\U0001f600", max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=4)

# What a busy machine takes says nothing about the property.
unhurried = settings(suppress_health_check=[HealthCheck.too_slow], max_examples=100)


@unhurried
@given(OBJECTS, OBJECTS)
def test_merging_changes_neither_input(base: dict[str, Any], overlay: dict[str, Any]):
    before = copy.deepcopy((base, overlay))
    result = merge(base, overlay)
    ruin(result)
    assert (base, overlay) == before


def ruin(value: Any) -> None:
    """Changes everything in it: what is shared with an input would show there."""
    for child in list(value.values() if isinstance(value, dict) else value):
        if isinstance(child, dict | list):
            ruin(child)
    value.clear()


@unhurried
@given(OBJECTS)
def test_an_empty_overlay_changes_nothing(base: dict[str, Any]):
    assert merge(base, {}) == base


@pytest.mark.parametrize("workers", [{}, *VALID])
@pytest.mark.parametrize("every", [{}, *VALID])
def test_pod_templates_that_are_accepted_render_in_every_combination(
    every: dict[str, Any], workers: dict[str, Any]
):
    script = {"script": {"configMap": "code"}}
    run = a_run(training=script, podTemplate=every, workers={"podTemplate": workers})
    assert rendered(run)[-1]["kind"] == "RayJob"


@unhurried
@given(JSON)
def test_values_survive_the_templates(value: Any):
    """In a place that a template gives them, whatever they hold."""
    others = ("name", "namespace", "owner", "pods", "operator_namespace", "operator_component")
    given = dict.fromkeys((*others, "metrics_from", "kuberay_namespaces"), "a")
    policy = render("networkpolicy", **given, progress_port=1, labels=value)
    assert policy["metadata"]["labels"] == value


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f600",
        "\\ud83d\\ude00",
        "\x7f",
        "\x85\u2028",
        "{{ x }}",
        "'<&>\"",
        "\ue0000",
        "\ue000x",
    ],
    ids=["emoji", "text-of-an-escape", "delete", "breaks", "braces", "html", "place", "no-place"],
)
def test_a_text_that_json_yaml_or_jinja_could_read_otherwise_survives(text: str):
    job = attempt(a_run(), 1, RenderSettings(ray_version=text))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == text


BASE: dict[str, Any] = {
    "spec": {
        "tolerations": [{"key": "ours"}],
        "containers": [
            {
                "name": "ray-worker",
                "image": "ours",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
}


def merged(spec: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = merge_pod_template(BASE, {"spec": spec})["spec"]
    return result


def test_containers_merge_by_name_and_new_ones_come_after_rays():
    containers = merged(
        {"containers": [{"name": "sidecar"}, {"name": "ray-worker", "image": "theirs"}]}
    )["containers"]
    assert [container["name"] for container in containers] == ["ray-worker", "sidecar"]
    assert containers[0]["image"] == "theirs"
    assert containers[0]["env"] == BASE["spec"]["containers"][0]["env"]


def test_a_variable_is_replaced_whole():
    """A value beside a valueFrom would be refused."""
    (container,) = merged(
        {"containers": [{"name": "ray-worker", "env": [{"name": "A", "value": "1"}]}]}
    )["containers"]
    assert container["env"] == [{"name": "A", "value": "1"}]


def test_volumes_and_mounts_are_added():
    spec = merged(
        {
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [
                {"name": "ray-worker", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
            ],
        }
    )
    assert [volume["name"] for volume in spec["volumes"]] == ["shm", "data"]
    assert [m["mountPath"] for m in spec["containers"][0]["volumeMounts"]] == ["/dev/shm", "/data"]


def test_tolerations_are_added():
    assert merged({"tolerations": [{"key": "theirs"}]})["tolerations"] == [
        {"key": "ours"},
        {"key": "theirs"},
    ]


def test_null_removes_what_was_rendered():
    (container,) = merged(
        {"containers": [{"name": "ray-worker", "resources": {"limits": {"cpu": None}}}]}
    )["containers"]
    assert container["resources"] == {"limits": {"memory": "1Gi"}}


def test_a_users_node_affinity_holds_together_with_the_rendered_one():
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    pod_template = {
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        }
    }
    run = a_run(workers={"podTemplate": pod_template, "capacity": {"type": "Spot"}})
    group = rendered(run, excluded=("n1",))[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    affinity = group["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [expression["key"] for expression in term["matchExpressions"]] == [
        "trainingrun.dev/capacity",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("x", id="string"),
        pytest.param(3, id="number"),
        pytest.param([1], id="list of numbers"),
        pytest.param({"a": "b"}, id="mapping"),
    ],
)
def test_a_list_of_the_wrong_shape_is_left_to_the_api_server(wrong: Any):
    merged({"containers": wrong})
    merged({"tolerations": wrong})
