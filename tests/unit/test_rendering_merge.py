"""A podTemplate is merged last, loses nothing that the run needs, and changes nobody's input."""

import copy
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.goldens import a_run, rendered
from support.pod_fields import VALID
from trainingrun.api.pod_schema import MOST_ITEMS
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


def of_ray(**container: Any) -> dict[str, Any]:
    """A pod's spec with this in Ray's container."""
    return {"spec": {"containers": [{"name": "ray-worker", **container}]}}


def ray_of(*templates: dict[str, Any]) -> dict[str, Any]:
    """Ray's container once each template is merged over those before it."""
    found = templates[0]
    for template in templates[1:]:
        found = merge_pod_template(found, template)
    (container,) = found["spec"]["containers"]
    return dict(container)


def variables(**values: str) -> dict[str, Any]:
    return of_ray(env=[{"name": name, "value": value} for name, value in values.items()])


@pytest.mark.parametrize(
    ("base", "overlay", "order"),
    [
        pytest.param(
            {"A": "1", "B": "2"}, {"C": "3", "A": "$(C)"}, ["B", "C", "A"], id="one that is added"
        ),
        pytest.param(
            {"A": "1", "B": "2"}, {"A": "$(B)/x"}, ["B", "A"], id="one that was behind it"
        ),
        pytest.param(
            {"A": "1", "B": "2", "C": "3"},
            {"A": "$(C)", "B": "$(A)"},
            ["C", "A", "B"],
            id="one that is moved itself",
        ),
        pytest.param(
            {"A": "1", "B": "2", "C": "$(B)"}, {"B": "$(A)"}, ["A", "B", "C"], id="one before it"
        ),
        pytest.param({"A": "1", "B": "2"}, {"A": "$$(B)"}, ["A", "B"], id="none, by its escape"),
        pytest.param({"A": "1", "B": "$(A)"}, {"A": "2"}, ["A", "B"], id="none"),
    ],
)
def test_a_variable_comes_behind_those_that_its_value_names(
    base: dict[str, str], overlay: dict[str, str], order: list[str]
):
    """The kubelet knows only what stands before; what names a variable itself stays behind it."""
    env = ray_of(variables(**base), variables(**overlay))["env"]
    assert [each["name"] for each in env] == order
    assert {each["name"]: each["value"] for each in env} == base | overlay


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def selecting(*terms: Any) -> dict[str, Any]:
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [*terms]}}}}}


def exists(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "Exists"}


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize(
    ("terms", "together"),
    [
        pytest.param(
            [{"matchExpressions": [exists("theirs")], "matchFields": None}],
            selecting({"matchExpressions": [exists("ours"), exists("theirs")]}),
            id="with a null, which is a field that is not set",
        ),
        pytest.param([], selecting({"matchExpressions": [exists("ours")]}), id="none"),
    ],
)
def test_no_node_selector_term_of_the_users_takes_away_the_rendered_ones(
    terms: list[Any], together: dict[str, Any], keep_nulls: bool
):
    ours = selecting({"matchExpressions": [exists("ours")], "matchFields": None})
    assert merge_pod_template(ours, selecting(*terms), keep_nulls) == together


def test_of_the_ways_to_probe_a_container_the_last_one_counts():
    """Kubernetes refuses a probe with two of them."""
    ours = of_ray(readinessProbe={"httpGet": {"path": "/", "port": 1}, "periodSeconds": 5})
    theirs = of_ray(readinessProbe={"exec": {"command": ["true"]}})
    assert ray_of(ours, theirs)["readinessProbe"] == {
        "exec": {"command": ["true"]},
        "periodSeconds": 5,
    }
    changed = ray_of(ours, of_ray(readinessProbe={"httpGet": {"path": "/x"}, "periodSeconds": 1}))
    assert changed["readinessProbe"] == {"httpGet": {"path": "/x", "port": 1}, "periodSeconds": 1}


def test_all_constraints_of_one_topology_are_the_users():
    def spread(**skew: int) -> list[dict[str, Any]]:
        return [
            {"topologyKey": "host", "whenUnsatisfiable": when, "maxSkew": most}
            for when, most in skew.items()
        ]

    zone = {"topologyKey": "zone", "maxSkew": 1}
    ours = {"spec": {"topologySpreadConstraints": [*spread(ScheduleAnyway=1), zone]}}
    wanted = spread(DoNotSchedule=3, ScheduleAnyway=2)
    once = merge_pod_template(ours, {"spec": {"topologySpreadConstraints": wanted}})
    assert once["spec"]["topologySpreadConstraints"] == [zone, *wanted]
    assert merge_pod_template(once, once) == once


def test_one_number_may_be_a_port_of_two_protocols():
    ours = of_ray(ports=[{"name": "dns", "containerPort": 53, "protocol": "TCP"}])
    udp = {"containerPort": 53, "protocol": "UDP"}
    found = ray_of(ours, of_ray(ports=[{"name": "first", "containerPort": 53}, udp]))
    assert found["ports"] == [{"name": "first", "containerPort": 53, "protocol": "TCP"}, udp]


class Compared(dict[str, Any]):
    """An entry of a list that knows how often any of them was compared with another one."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)

    __hash__ = None


def entries(name: str, number: int) -> list[Any]:
    return [Compared(key=f"{name}-{place}", operator="Exists") for place in range(number)]


def in_pod(field: str, items: list[Any]) -> dict[str, Any]:
    """A pod template with items in a list that is added to."""
    if field == "tolerations":
        return {"spec": {field: items}}
    if field == "envFrom":
        return of_ray(envFrom=items)
    if field == "matchExpressions":
        return selecting({field: items})
    return {"spec": {"affinity": {"podAffinity": {field: items}}}}


@pytest.mark.parametrize("field", ["tolerations", "envFrom", REQUIRED, "matchExpressions"])
def test_lists_are_added_without_comparing_each_entry_with_each(field: str):
    """One namespace's templates are merged while all others wait."""
    ours, theirs = entries("ours", MOST_ITEMS), entries("theirs", MOST_ITEMS - 1)
    Compared.times = 0
    found = merge_pod_template(in_pod(field, ours), in_pod(field, [*theirs, ours[0]]))
    assert Compared.times <= 2 * MOST_ITEMS
    once = [*ours[1:], *theirs, ours[0]] if field != "tolerations" else [*ours, *theirs]
    assert found == in_pod(field, once)


def cpu_seconds(base: dict[str, Any], overlay: dict[str, Any]) -> float:
    begun = time.process_time()
    merge_pod_template(base, overlay, keep_nulls=True)
    return time.process_time() - begun


@pytest.mark.parametrize(
    ("base", "overlay"),
    [
        pytest.param(
            variables(**{f"N{place}": "" for place in range(20_000)}),
            variables(**{f"N{place}": "$(M)" for place in range(20_000)}),
            id="variables that name others",
        ),
        pytest.param(
            variables(A=""), variables(A="$(" * 200_000), id="references that are not closed"
        ),
        pytest.param(
            of_ray(args=["a"] * 20_000),
            {"spec": {"containers": [{"name": "ray-worker"}] * 5000}},
            id="a container that is there thousands of times",
        ),
        pytest.param(
            selecting(*({"matchExpressions": [exists(f"a{n}")]} for n in range(2000))),
            selecting({"matchExpressions": [exists(f"b{n}") for n in range(20_000)]}),
            id="many terms, and one that is long",
        ),
        pytest.param(
            in_pod("tolerations", [exists(f"a{n}") for n in range(20_000)]),
            in_pod("tolerations", [exists(f"b{n}") for n in range(20_000)]),
            id="more tolerations than are taken",
        ),
    ],
)
def test_a_merge_of_what_is_not_checked_yet_takes_as_long_as_it_is(
    base: dict[str, Any], overlay: dict[str, Any]
):
    assert cpu_seconds(base, overlay) < 1
