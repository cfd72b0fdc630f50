"""A slow admission webhook, against a real API server: it is awaited, and holds up no other run."""

import pytest

from support.operators import (
    PlaysKubeRay,
    a_run,
    configuration_of,
    eventually,
    running,
    settings_for,
)
from support.webhooks import HeldWebhook
from trainingrun.controller.leadership import WRITE_S
from trainingrun.controller.operator import Operator

RUNS = 20


@pytest.fixture
def other_namespace(apiserver):
    return apiserver.new_namespace()


async def test_runs_behind_a_slow_webhook_begin_and_hold_up_no_run_of_another_namespace(
    apiserver, namespace, other_namespace, kuberay, head, tmp_path
):
    """The webhook answers only after a leader's whole time to write, which it renews meanwhile."""
    settings = settings_for(namespace, other_namespace)
    operator = Operator(settings, await configuration_of(apiserver), head.target)
    other = PlaysKubeRay(apiserver, other_namespace)
    async with (
        HeldWebhook().listening(apiserver, namespace, tmp_path) as webhook,
        running(operator),
    ):
        for number in range(RUNS):
            apiserver.create(a_run(namespace, f"slow-{number}"))
        await eventually(lambda: len(webhook.held) >= settings.operator.workers)
        apiserver.create(a_run(other_namespace))
        await eventually(lambda: other.jobs() == ["digits-1"])
        assert kuberay.jobs() == [], "it began while all the others waited"
        await eventually(lambda: webhook.held_for_s() > WRITE_S + 1)
        webhook.released.set()
        await eventually(lambda: len(kuberay.jobs()) == RUNS)
        assert len(webhook.held) == RUNS, "none was given up and sent again"
