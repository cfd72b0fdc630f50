"""No RayJob is created that KubeRay could not read, wherever what is in it comes from."""

import copy
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from support.builders import T0
from support.goldens import CASES, a_run, rendered
from support.pod_fields import BAD, TEMPLATE_PATHS, with_value
from support.reconciled import begins, condition, reconcile
from trainingrun import rendering
from trainingrun.api.pod_schema import MOST_ITEMS, MOST_SELECTOR_TEXT, MOST_TERMS, selector_text
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.reconciling import Observed, ReconcileSettings, plan
from trainingrun.rendering import RenderSettings, platforms
from trainingrun.rendering.merge import merge
from trainingrun.rendering.scheduling import REQUIRED, is_exclusion

JOB = rendered(a_run())[-1]
COLLECTOR = {"image": "a", "resources": {"limits": {"cpu": "one"}}}


@pytest.mark.parametrize("name", CASES)
def test_kuberay_can_read_what_is_rendered(name: str) -> None:
    assert rendering.unreadable(CASES[name][-1]) == ""


def largest_template(name: str, *containers: str) -> dict[str, Any]:
    """A podTemplate that has as many entries as one may have."""

    def keys(number: int, whose: str) -> list[dict[str, Any]]:
        return [{"key": f"{whose}-{each}", "operator": "Exists"} for each in range(number)]

    terms = [{"matchExpressions": keys(MOST_TERMS, f"{name}-{each}")} for each in range(MOST_TERMS)]
    left = MOST_SELECTOR_TEXT - selector_text(terms)
    values = ["x" * (left - len(',"values":[""]'))]
    terms[0]["matchExpressions"][0] |= {"operator": "NotIn", "values": values}
    return {
        "spec": {
            "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
            "tolerations": keys(MOST_ITEMS, name),
            "containers": [{"name": each, "env": variables(name, 200)} for each in containers],
        }
    }


def variables(name: str, number: int) -> list[dict[str, Any]]:
    return [{"name": f"{name}_{each}", "value": "x"} for each in range(number)]


def largest_run(capacity: str) -> TrainingRun:
    """A run with the largest podTemplates, and the most variables, that the API takes."""
    return a_run(
        training={"function": "a:b", "env": variables("training", 100)},
        workers={
            "count": 2,
            "capacity": {"type": capacity},
            "podTemplate": largest_template("own", "ray-worker"),
        },
        head={"podTemplate": largest_template("own", "ray-head")},
        podTemplate=largest_template("common", "ray-head", "ray-worker"),
    )


@pytest.mark.parametrize("capacity", ["OnDemand", "Spot", "PreferSpot"])
@pytest.mark.parametrize("platform", platforms.KNOWN)
def test_the_largest_templates_that_are_accepted_begin_and_lose_nothing_in_the_merge(
    platform: platforms.PlatformName, capacity: str
) -> None:
    """Also once a node is excluded, which each term then says. AKS has two labels of spot nodes,
    and so twice as many terms.
    """
    job = rendered(largest_run(capacity), platform, excluded=("node-a",))[-1]
    assert rendering.unreadable(job) == ""
    assert len(json.dumps(job)) < (2_600_000 if platform == "aks" else 1_400_000)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        terms = pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert len(terms) % MOST_TERMS**2 == 0
        for term in terms:
            whose = [each["key"].split("-")[0] for each in term["matchExpressions"]]
            assert whose.count("own") == whose.count("common") == MOST_TERMS
            assert any(is_exclusion(each) for each in term["matchExpressions"])
        assert len(pod["containers"][0]["env"]) > MOST_ITEMS


@pytest.mark.parametrize(
    "requirement",
    [
        pytest.param({"values": [f"v{each}" for each in range(MOST_ITEMS)]}, id="values"),
        pytest.param({"values": ["x" * MOST_SELECTOR_TEXT]}, id="a long value"),
        pytest.param({"key": "x" * MOST_SELECTOR_TEXT, "values": ["a"]}, id="a long key"),
    ],
)
def test_what_the_terms_of_two_templates_multiply_is_refused_where_it_is_much(
    requirement: dict[str, Any],
) -> None:
    template = largest_template("own")
    (terms,) = template["spec"]["affinity"]["nodeAffinity"][REQUIRED].values()
    for term in terms:
        for each in term["matchExpressions"]:
            each |= {"operator": "In"} | requirement
    size = selector_text(terms)
    for whose in (
        {"podTemplate": template},
        {"head": {"podTemplate": template}},
        {"workers": {"count": 2, "podTemplate": template}},
    ):
        says = f"write at most 16384 characters of terms, as JSON, not {size}"
        with pytest.raises(ValidationError, match=says):
            a_run(**whose)


@pytest.mark.parametrize("group", ["headGroupSpec", "workerGroupSpecs"])
def test_a_number_that_go_cannot_read_is_found_in_every_field_of_either_pod(group: str) -> None:
    unseen = []
    for path, kind in TEMPLATE_PATHS:
        for value in BAD[kind]:
            job: dict[str, Any] = copy.deepcopy(JOB)
            part = job["spec"]["rayClusterSpec"][group]
            (part[0] if isinstance(part, list) else part)["template"] = with_value(path, value)
            if not rendering.unreadable(job):
                unseen.append((path, value))
    assert unseen == []


def test_a_merged_pod_is_looked_at_as_a_whole() -> None:
    job = copy.deepcopy(JOB)
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]
    head["template"] = merge(head["template"], {"spec": {"priority": 2**31}})
    assert rendering.unreadable(job) == (
        "headGroupSpec.template.spec.priority is 2147483648; write a whole number, -2147483648 to "
        "2147483647"
    )


def test_the_collector_of_the_history_server_is_looked_at_too() -> None:
    job = rendering.attempt(a_run(), 1, RenderSettings(history_collector=COLLECTOR))
    assert rendering.unreadable(job).startswith(
        'historyServerOptions.collectorOptions.resources.limits.cpu is "one"; write a quantity'
    )


def test_such_a_rayjob_is_not_created_and_the_run_says_why() -> None:
    run = Observed(a_run())
    assert begins(reconcile(run)) == 1
    render = RenderSettings(history_collector=COLLECTOR)
    planned = plan(run, render, ReconcileSettings(), T0 + timedelta(seconds=60))
    planned = (
        planned
        if not planned.confirm
        else plan(
            replace(run, confirmed=True), render, ReconcileSettings(), T0 + timedelta(seconds=60)
        )
    )
    assert planned.actions == ()
    accepted = condition(planned, "Accepted")
    assert (accepted.status, accepted.reason) == ("False", "InvalidSpec")
    assert 'collectorOptions.resources.limits.cpu is "one"' in accepted.message
