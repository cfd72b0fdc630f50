"""The chart's admission policies on a real API server: they refuse what the operator refuses."""

import itertools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.apiserver import MERGE, ApiError, ApiServer, running_apiserver
from support.binaries import skipping_unavailable
from support.operators import a_run
from support.tools import helm
from trainingrun.api.v1alpha1 import API_VERSION, RunSpec
from trainingrun.rendering.defaults import applied, exceeded

CHART = Path(__file__).parents[2] / "charts" / "trainingrun-operator"
DEADLINES = itertools.count(1_000_000)
KINDS = ("TrainingDefaults", "ClusterTrainingDefaults")
GPUS = {"accelerator": {"kind": "nvidia", "count": 2}}
SWEEP = {
    "metric": "loss",
    "mode": "min",
    "samples": 4,
    "concurrency": 2,
    "space": [{"name": "lr", "values": [1, 2]}],
}

BOTH: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"workers": 1, "accelerators": 0}),
    ({"workers": {"count": 2}}, {}),
    ({"workers": {"count": 2}}, {"workers": 2}),
    ({"workers": {"count": 3}}, {"workers": 2}),
    ({"workers": {"count": 3, "minimum": 1}}, {"workers": 2}),
    ({"workers": {"count": 2}, "sweep": SWEEP}, {"workers": 3}),
    ({"workers": {"count": 2}, "sweep": SWEEP}, {"workers": 4}),
    ({"workers": {"count": 2, **GPUS}}, {"accelerators": 4}),
    ({"workers": {"count": 2, **GPUS}}, {"accelerators": 3}),
    ({"workers": {"count": 2, **GPUS}}, {"accelerators": 0}),
    ({"workers": {"count": 4, "perPod": 2, "standby": 1, **GPUS}}, {"accelerators": 11}),
    ({"workers": {"count": 4, "perPod": 2, "standby": 1, **GPUS}}, {"accelerators": 12}),
    ({"activeDeadlineSeconds": 60}, {"activeDeadlineSeconds": 60}),
    ({"activeDeadlineSeconds": 61}, {"activeDeadlineSeconds": 60}),
    ({"budget": {"amount": 5}}, {"budgetAmount": 5}),
    ({"budget": {"amount": 5.5}}, {"budgetAmount": 5}),
    ({"budget": {"amount": 1}}, {"budgetAmount": 0.5}),
    ({"budget": {"amount": 5, "action": "Warn"}}, {"budgetAmount": 5}),
    ({"workers": {"count": 3}, "budget": {"amount": 9}}, {"workers": 2, "budgetAmount": 5}),
]
"""A run's spec and limits, about which both agree."""

OPERATOR_ALONE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"activeDeadlineSeconds": 60}),
    ({}, {"budgetAmount": 5}),
]
"""What a run lacks may be set by defaults."""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server with the chart's policies, once they are in force."""
    with skipping_unavailable():
        command = [str(helm()), "template", "trainingrun-operator", str(CHART)]
    rendered = subprocess.run(
        [*command, "--set", "admissionPolicy.enabled=true"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    with running_apiserver() as started:
        started.install_crds()
        for found in yaml.load_all(rendered, yaml.CSafeLoader):
            if found and found["kind"].startswith("ValidatingAdmissionPolicy"):
                started.create(found)
        yield started


def limits(kind: str, namespace: str, **maximum: Any) -> dict[str, Any]:
    place = {"namespace": namespace} if kind == "TrainingDefaults" else {}
    metadata = {"name": "default", **place}
    spec = {"maximum": maximum}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def refusal(server: ApiServer, run: dict[str, Any]) -> str:
    """What the API server says; empty: it takes the run."""
    try:
        server.create(run, dry_run=True)
    except ApiError as error:
        return str(error)
    return ""


def in_force(server: ApiServer, kind: str, namespace: str, maximum: dict[str, Any]) -> None:
    """Sets limits, and waits until the API server goes by them: it watches them.

    The longest deadline, another one each time unless the test sets it, shows which ones.
    """
    marked = {"activeDeadlineSeconds": next(DEADLINES), **maximum}
    server.apply(limits(kind, namespace, **marked))
    tried = a_run(namespace, "tried", activeDeadlineSeconds=31536000)
    says = f"{kind} default allows at most {marked['activeDeadlineSeconds']}; write"
    until = time.monotonic() + 20
    while says not in refusal(server, tried):
        assert time.monotonic() < until, refusal(server, tried)
        time.sleep(0.05)


@pytest.fixture
def namespace(server: ApiServer) -> str:
    return server.new_namespace()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, server: ApiServer) -> Iterator[str]:
    yield request.param
    if request.param == "ClusterTrainingDefaults":
        server.request("DELETE", server.path(limits(request.param, "")))
        until = time.monotonic() + 20
        while refusal(server, a_run("default", "tried", activeDeadlineSeconds=31536000)):
            assert time.monotonic() < until, "the API server still goes by them"
            time.sleep(0.05)


def test_the_api_server_refuses_what_the_operator_refuses_in_its_words(
    server: ApiServer, namespace: str, kind: str
) -> None:
    for spec, maximum in BOTH + OPERATOR_ALONE:
        in_force(server, kind, namespace, maximum)
        run = a_run(namespace, **spec)
        sentences = exceeded(
            RunSpec.model_validate(run["spec"]),
            applied(run, [limits(kind, namespace, **maximum)]),
        )
        said = refusal(server, run)
        if not sentences or (spec, maximum) in OPERATOR_ALONE:
            assert said == "", (spec, maximum)
        else:
            assert any(sentence in said for sentence in sentences), (spec, maximum, sentences)


def test_a_run_from_before_a_limit_can_be_changed_but_not_beyond_it(
    server: ApiServer, namespace: str, kind: str
) -> None:
    run = server.create(
        a_run(namespace, workers={"count": 4}, budget={"amount": 9, "action": "Warn"})
    )
    in_force(server, kind, namespace, {"workers": 2, "accelerators": 0, "budgetAmount": 1})
    path = server.path(run)
    server.request("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, MERGE)
    server.request("PATCH", path, {"spec": {"suspend": True}}, MERGE)
    with pytest.raises(ApiError, match=r"budget.amount is 10; .* allows at most 1"):
        server.request("PATCH", path, {"spec": {"budget": {"amount": 10}}}, MERGE)
    run = server.get(API_VERSION, "TrainingRun", "digits", namespace)
    server.replace(run | {"status": {"attempt": 1}}, "status")
    server.request("PATCH", path, {"spec": {"budget": {"amount": 10}}}, MERGE)
