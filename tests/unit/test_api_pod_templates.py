"""What Kubernetes would not take of a podTemplate is told before a RayJob exists.

By the type of each field: a number or a quantity that Go cannot read in one RayJob keeps KubeRay
from reading any.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.constraints import minimal_run
from support.pod_fields import BAD, TEMPLATE_PATHS, TEMPLATES, VALID, a_run, with_value
from trainingrun.api import pod_schema
from trainingrun.api.parse import InvalidRunError, parse


def problems(manifest: dict[str, Any]) -> list[str]:
    try:
        parse(manifest)
    except InvalidRunError as error:
        return [problem.sentence for problem in error.problems]
    return []


def of_workers(template: Any) -> list[str]:
    return problems(a_run("workers.podTemplate", template))


RAY = {"name": "ray-worker"}
PRIVILEGED = {"privileged": True, "allowPrivilegeEscalation": False}
CONTAINER = "spec.workers.podTemplate.spec.containers[0]"
SPEC = "spec.workers.podTemplate.spec"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        pytest.param(
            {"tolerations": [{"key": "gpu", "operator": "Equals", "value": "true"}]},
            f'{SPEC}.tolerations[0].operator is "Equals"; write Equal, Exists, Gt or Lt',
            id="operator of a toleration",
        ),
        pytest.param(
            {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedul"}]},
            f'{SPEC}.tolerations[0].effect is "NoSchedul"; write NoExecute, NoSchedule or '
            "PreferNoSchedule",
            id="effect of a toleration",
        ),
        pytest.param(
            {"nodeSelector": {"gpu": True}},
            f"{SPEC}.nodeSelector.gpu is true; write a text, in quotes",
            id="a boolean in nodeSelector",
        ),
        pytest.param(
            {"containers": [{**RAY, "imagePullPolicy": "always"}]},
            f'{CONTAINER}.imagePullPolicy is "always"; write Always, IfNotPresent or Never',
            id="a pull policy in small letters",
        ),
        pytest.param(
            {"containers": [{**RAY, "livenessProbe": {"httpGet": {"port": "web"}}}]},
            f'{CONTAINER}.livenessProbe.httpGet.port is "web"; no port of this container has that '
            "name; write a number, or one of metrics",
            id="a port that is not there",
        ),
        pytest.param(
            {"containers": [{**RAY, "volumeMounts": [{"name": "nothere", "mountPath": "/data"}]}]},
            f'{CONTAINER}.volumeMounts[0].name is "nothere"; no volume has that name; add it to '
            "volumes, which has shared-memory",
            id="a mount without its volume",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": "z", "operator": "in", "values": ["a"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            f"{SPEC}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
            'nodeSelectorTerms[0].matchExpressions[0].operator is "in"; write DoesNotExist, '
            "Exists, Gt, In, Lt or NotIn",
            id="operator of a node selector",
        ),
        pytest.param(
            {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "Data"}}]},
            f'{SPEC}.volumes[0].persistentVolumeClaim.claimName is "Data"; write the name of an '
            "object: lower-case letters, digits, hyphens and dots",
            id="a claim with capitals",
        ),
        pytest.param(
            {"dnsPolicy": "clusterfirst"},
            f'{SPEC}.dnsPolicy is "clusterfirst"; write ClusterFirst, ClusterFirstWithHostNet, '
            "Default or None",
            id="dnsPolicy",
        ),
        pytest.param(
            {"securityContext": {"runAsUser": "1000"}},
            f'{SPEC}.securityContext.runAsUser is "1000"; write a whole number, '
            "-9223372036854775808 to 9223372036854775807",
            id="a text for a number",
        ),
        pytest.param(
            {"hostNetwork": "true"},
            f'{SPEC}.hostNetwork is "true"; write true or false',
            id="a text for a boolean",
        ),
        pytest.param(
            {"tolerations": [{"key": "gpu", "operator": "Exists", "value": "true"}]},
            f'{SPEC}.tolerations[0].value is "true"; leave it out: operator Exists takes any value',
            id="a value for Exists",
        ),
        pytest.param(
            {"tolerations": [{"effect": "NoSchedule"}]},
            f"{SPEC}.tolerations[0].key is missing; add it, or write operator: Exists",
            id="a toleration without a key",
        ),
        pytest.param(
            {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
            f"{SPEC}.tolerations[0].tolerationSeconds is 5; write effect: NoExecute beside it, the "
            "one effect that it is for, or leave it out",
            id="seconds without NoExecute",
        ),
        pytest.param(
            {"containers": [{**RAY, "resources": {"limits": {"memory": "16GB"}}}]},
            f'{CONTAINER}.resources.limits.memory is "16GB"; write a quantity in quotes, such as '
            '"500m", "4" or "16Gi"; did you mean 16G or 16Gi?',
            id="a size with B",
        ),
        pytest.param(
            {"containers": [{"name": "proxy"}]},
            f"{CONTAINER}.image is missing; add it: this container is no container of Ray's in "
            "these pods",
            id="a sidecar without an image",
        ),
        pytest.param(
            {"containers": [{**RAY, "env": [{"name": "PASSWORD", "value": 12345}]}]},
            f"{CONTAINER}.env[0].value is wrong; write a text, in quotes",
            id="a number that may be secret",
        ),
        pytest.param(
            {"containers": [{**RAY, "readinessProbe": {"tcpSocket": {"port": "8080"}}}]},
            f'{CONTAINER}.readinessProbe.tcpSocket.port is "8080"; write the number 8080, without '
            "quotes",
            id="a port number in quotes",
        ),
        pytest.param(
            {"containers": [{**RAY, "ports": [{"containerPort": 65536}]}]},
            f"{CONTAINER}.ports[0].containerPort is 65536; write the number of a port, 1 to 65535",
            id="no port has that number",
        ),
        pytest.param(
            {"containers": [{**RAY, "ports": [{"name": "metrics", "containerPort": 9000}]}]},
            f'{CONTAINER}.ports[0].name is "metrics"; port 8080 of this container has that name; '
            "give it another one, or leave it out",
            id="the name of a port that is rendered",
        ),
        pytest.param(
            {"containers": [{**RAY, "resources": {"limits": {"memory": "1Gi"}}}]},
            f'{CONTAINER}.resources.limits.memory is "1Gi"; write at least 2Gi as in requests, or '
            "change requests too",
            id="a limit below the request",
        ),
        pytest.param(
            {"containers": [{**RAY, "resources": {"requests": {"cpu": 2}}}]},
            f"{CONTAINER}.resources.requests.cpu is 2; write at most 1 as in limits, or change "
            "limits too",
            id="a request above the limit",
        ),
        pytest.param(
            {"containers": [{**RAY, "securityContext": PRIVILEGED}]},
            f"{CONTAINER}.securityContext.allowPrivilegeEscalation is false; leave it out: a "
            "container that is privileged has all privileges",
            id="privileged without privileges",
        ),
        pytest.param(
            {"volumes": [{"name": "a", "nfs": {"server": "b"}}]},
            f"{SPEC}.volumes[0].nfs.path is missing; add it",
            id="a required field",
        ),
    ],
)
def test_an_ordinary_mistake_in_a_pod_template_is_told(spec: Any, sentence: str) -> None:
    assert of_workers({"spec": spec}) == [sentence]


def test_a_number_as_an_annotation_is_told() -> None:
    assert of_workers({"metadata": {"annotations": {"a.b/c": 6379}}}) == [
        "spec.workers.podTemplate.metadata.annotations.a.b/c is 6379; write a text, in quotes"
    ]


def test_all_mistakes_are_told_at_once_those_of_our_own_rules_too() -> None:
    told = of_workers({"spec": {"restartPolicy": "Always", "dnsPolicy": "a", "hostNetwork": 1}})
    assert [sentence.split()[0].rpartition(".")[2] for sentence in told] == [
        "restartPolicy",
        "dnsPolicy",
        "hostNetwork",
    ]


class Counted(list[Any]):
    """A list that knows how many of its items were taken."""

    taken = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.taken += 1
            yield item


def test_no_more_of_a_template_is_read_than_is_told() -> None:
    wrong = Counted([0] * pod_schema.MOST_ITEMS)
    assert len(pod_schema.faults({"spec": {"containers": wrong}}, pod_schema.TEMPLATE)) == 20
    assert wrong.taken <= 21


@pytest.mark.parametrize(
    ("field", "most"),
    [
        pytest.param("tolerations", pod_schema.MOST_ITEMS, id="a list"),
        pytest.param("affinity", pod_schema.MOST_TERMS, id="terms, which are multiplied"),
    ],
)
def test_a_list_that_templates_are_merged_by_has_a_largest_length(field: str, most: int) -> None:
    def with_entries(number: int) -> Any:
        if field == "tolerations":
            return [{"key": f"k{n}", "operator": "Exists"} for n in range(number)]
        terms = [
            {"matchExpressions": [{"key": f"k{n}", "operator": "Exists"}]} for n in range(number)
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return {"nodeAffinity": required}

    assert of_workers({"spec": {field: with_entries(most)}}) == []
    (told,) = of_workers({"spec": {field: with_entries(most + 1)}})
    assert told.endswith(f"write at most {most} entries, not {most + 1}")


@pytest.mark.parametrize("field", ["nodeSelectorTerms", "matchExpressions", "matchFields"])
def test_of_too_many_terms_none_is_read(field: str) -> None:
    """Each may be as large as a template, and merged they are as many as two lists multiplied."""
    many = Counted([{"key": "a", "operator": "Exists"}] * (pod_schema.MOST_TERMS + 1))
    selector = (
        {field: many} if field == "nodeSelectorTerms" else {"nodeSelectorTerms": [{field: many}]}
    )
    required = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    (told,) = pod_schema.faults(template, pod_schema.TEMPLATE)
    assert (told.location[-1], many.taken) == (field, 0)
    assert told.says == "write at most 16 entries, not 17"


def test_of_names_that_are_not_there_a_few_are_told_and_a_few_of_those_that_are() -> None:
    mounts = [{"name": "none", "mountPath": f"/{n}"} for n in range(100)]
    volumes = [{"name": f"volume-{n:03}", "emptyDir": {}} for n in range(100)]
    container = {**RAY, "volumeMounts": mounts}
    told = of_workers({"spec": {"containers": [container], "volumes": volumes}})
    assert len(told) == 20
    assert told[0].endswith("volume-008, 91 more")


@pytest.mark.parametrize("template", VALID, ids=json.dumps)
def test_what_kubernetes_takes_is_taken(template: Any) -> None:
    assert of_workers(template) == []


def test_what_one_template_mounts_may_be_a_volume_of_the_one_for_all() -> None:
    mount = {"name": "data", "mountPath": "/data"}
    volumes = [{"name": "data", "emptyDir": {}}]
    run = a_run("workers.podTemplate", {"spec": {"containers": [{**RAY, "volumeMounts": [mount]}]}})
    run["spec"]["podTemplate"] = {"spec": {"volumes": volumes}}
    assert problems(run) == []


def test_a_template_for_all_is_held_to_the_pods_that_each_part_is_for() -> None:
    """Only the head has the tokens, and each of Ray's containers is in its own pods."""
    mount = {"name": "tokens", "mountPath": "/tokens"}
    containers = [
        {"name": "ray-head", "volumeMounts": [mount]},
        {"name": "ray-worker", "volumeMounts": [mount]},
    ]
    (told,) = problems(a_run("podTemplate", {"spec": {"containers": containers}}))
    assert told.startswith("spec.podTemplate.spec.containers[1].volumeMounts[0].name is ")


@pytest.mark.parametrize("place", TEMPLATES)
def test_no_number_or_quantity_that_go_cannot_read_is_taken(place: str) -> None:
    """Of every field of every type below a pod template."""
    taken = [
        f"{'.'.join(path)}: {value!r}"
        for path, kind in TEMPLATE_PATHS
        for value in BAD[kind]
        if not any(
            sentence.startswith(f"spec.{place}.") and shown_field(path) in sentence.split()[0]
            for sentence in problems(a_run(place, with_value(path, value)))
        )
    ]
    assert taken == []


def shown_field(path: tuple[str, ...]) -> str:
    return ".".join(path).replace(".[]", "[0]").replace(".{}", ".key")


def test_the_fields_are_those_of_a_pod() -> None:
    paths = {".".join(path) for path, _ in TEMPLATE_PATHS}
    assert len(paths) > 150
    assert {
        "spec.priority",
        "spec.tolerations.[].tolerationSeconds",
        "spec.containers.[].resources.limits.{}",
        "spec.initContainers.[].livenessProbe.httpGet.port",
        "spec.volumes.[].projected.sources.[].downwardAPI.items.[].resourceFieldRef.divisor",
        "spec.volumes.[].ephemeral.volumeClaimTemplate.spec.resources.requests.{}",
    } <= paths


@pytest.mark.parametrize("value", BAD["quantity"], ids=repr)
def test_no_such_quantity_of_a_variables_source_is_taken(value: Any) -> None:
    source = {"resourceFieldRef": {"resource": "limits.cpu", "divisor": value}}
    run = minimal_run("team-a")
    run["spec"]["training"]["env"] = [{"name": "A", "valueFrom": source}]
    (told,) = problems(run)
    assert told.startswith("spec.training.env[0].valueFrom.resourceFieldRef.divisor is ")


@given(st.text("0123456789.+-eEinumkKMGTP ", max_size=12))
@example("1e99")
@example("9223372036854775807")
def test_a_quantity_that_is_taken_is_of_gos_grammar_and_in_its_range(text: str) -> None:
    if not pod_schema.is_quantity(text):
        return
    unsigned = text.lstrip("+-")
    assert len(text) - len(unsigned) <= 1
    digits = unsigned.rstrip("inumkKMGTP")
    assert any(character.isdigit() for character in digits)
    assert "e1." not in text.lower()


@pytest.mark.parametrize("text", ["9223372036854775807", "0.1n", "8Ei", "-1", "+.5", "1.", "1E"])
def test_the_edges_of_a_quantity(text: str) -> None:
    assert pod_schema.is_quantity(text) is (text != "8Ei")


def with_resources(**resources: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**RAY, "resources": resources}]}}


def with_gpus(template: Any, every: Any = None) -> list[str]:
    """What is told of a run whose pods have 4 GPUs each."""
    run = a_run("workers.podTemplate", template)
    run["spec"]["workers"] |= {"count": 2, "perPod": 2, "accelerator": {"kind": "nvidia"}}
    run["spec"]["workers"]["accelerator"]["count"] = 2
    return problems({**run, "spec": {**run["spec"], "podTemplate": every or {}}})


def test_as_many_gpus_are_requested_as_are_the_limit() -> None:
    (told,) = with_gpus(with_resources(limits={"nvidia.com/gpu": 8}))
    assert told == (
        f"{CONTAINER}.resources.limits.nvidia.com/gpu is 8; write 4 as in requests: of this "
        "resource Kubernetes takes one number"
    )
    both = {kind: {"nvidia.com/gpu": "8"} for kind in ("limits", "requests")}
    assert with_gpus(with_resources(**both)) == []
    assert with_gpus(with_resources(limits={"nvidia.com/gpu": "4"})) == []


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}, id="both"),
        pytest.param({"limits": {"memory": "1Gi"}, "requests": {"memory": None}}, id="no request"),
        pytest.param({"limits": {"memory": "1Gi"}, "requests": None}, id="no requests"),
        pytest.param({"limits": {"cpu": "2", "memory": "3Gi"}}, id="larger limits"),
        pytest.param({"requests": {"cpu": "500m"}}, id="a smaller request"),
        pytest.param({"limits": {"other.com/device": 1}}, id="another device"),
    ],
)
def test_limits_that_fit_the_requests_are_taken(resources: Any) -> None:
    assert of_workers(with_resources(**resources)) == []


def test_what_two_templates_say_of_one_container_is_looked_at_together() -> None:
    every = with_resources(requests={"memory": "1Gi"})
    assert with_gpus(with_resources(limits={"memory": "2Gi"}), every) == []
    (told,) = with_gpus(with_resources(limits={"memory": "512Mi"}), every)
    assert told.startswith(f'{CONTAINER}.resources.limits.memory is "512Mi"; write at least 1Gi')


def test_a_port_may_take_the_name_of_one_that_is_called_otherwise() -> None:
    ports = [{"name": "metrics", "containerPort": 9000}, {"name": "old", "containerPort": 8080}]
    assert of_workers({"spec": {"containers": [{**RAY, "ports": ports}]}}) == []
    two = {"name": "proxy", "image": "a", "ports": [{"name": "metrics", "containerPort": 9000}]}
    assert of_workers({"spec": {"containers": [two]}}) == []
