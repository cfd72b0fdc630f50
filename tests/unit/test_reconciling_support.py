"""A running attempt's NetworkPolicy stays as rendered, whoever deletes or edits it."""

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import OTHER_UID, T0, UID
from support.reconciled import a_polled_run, reconcile
from trainingrun.reconciling import Observed, ReconcileSettings, plan
from trainingrun.reconciling.model import Apply, Object, Restore
from trainingrun.rendering import RenderSettings, support_objects


@pytest.fixture
def training() -> Observed:
    return a_polled_run()


@pytest.fixture
def policy(training: Observed) -> dict[str, Any]:
    """The policy as the API server has it."""
    (rendered,) = support_objects(training.run, RenderSettings())
    stored = copy.deepcopy(rendered)
    stored["metadata"] |= {"uid": "policy", "resourceVersion": "5"}
    return stored


def of(training: Observed, *found: Object) -> Observed:
    return replace(training, support=found)


def test_as_it_is_rendered_it_is_left_alone(training: Observed, policy: dict[str, Any]) -> None:
    assert reconcile(of(training, policy)).actions == ()
    assert reconcile(training).actions == (), "nothing is known of it"


def test_one_that_is_gone_is_made_again(training: Observed) -> None:
    (action,) = reconcile(of(training)).actions
    assert isinstance(action, Apply)
    assert action.manifest["kind"] == "NetworkPolicy"


def test_one_of_another_owner_is_applied_which_says_so(
    training: Observed, policy: dict[str, Any]
) -> None:
    (owner,) = policy["metadata"]["ownerReferences"]
    assert owner["uid"] == UID
    owner["uid"] = OTHER_UID
    assert [type(action) for action in reconcile(of(training, policy)).actions] == [Apply]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param({"ingress": [{}]}, id="lets everybody in"),
        pytest.param({"egress": [], "policyTypes": ["Ingress", "Egress"]}, id="lets nothing out"),
        pytest.param({"podSelector": {"matchLabels": {"no": "pod"}}}, id="selects no pod"),
    ],
)
def test_one_that_was_edited_is_restored(
    training: Observed, policy: dict[str, Any], edit: dict[str, Any]
) -> None:
    wanted = dict(policy["spec"])
    policy["spec"] |= edit
    (action,) = reconcile(of(training, policy)).actions
    assert isinstance(action, Restore)
    assert (action.manifest["spec"], action.uid) == (wanted, "policy")


def test_it_follows_kuberay_to_another_namespace(
    training: Observed, policy: dict[str, Any]
) -> None:
    moved = RenderSettings(kuberay_namespaces=("elsewhere",))
    now = T0 + timedelta(seconds=60)
    (action,) = plan(of(training, policy), moved, ReconcileSettings(), now).actions
    assert isinstance(action, Restore)
    assert "elsewhere" in str(action.manifest["spec"])
