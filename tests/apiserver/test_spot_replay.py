"""The replay of days on spot nodes: what it computes, and a short day of it."""

import asyncio
import math

from benchmarks.spot_replay import Event, Plain, oracle_s, plain_rayjob, replay
from support.simulated_nodes import Stages

SPEED = 8.0
SHORT = Stages(begin=20.0, pod=8.0, group=8.0, notice=16.0)


def test_a_plain_rayjob_pays_for_each_loss_of_a_node_that_it_uses():
    plain = Plain(notice=10.0, restart=40.0, checkpoint=100.0)
    nodes = [Event(0.0, name, True) for name in ("a", "b", "c")]
    assert plain_rayjob(nodes, 1000.0, 2, plain) == 960.0
    assert plain_rayjob([*nodes, Event(500.0, "c", False)], 1000.0, 2, plain) == 960.0
    # Of 460 s 400 are kept; its next job begins 10 s later on b and c.
    assert plain_rayjob([*nodes, Event(500.0, "a", False)], 1000.0, 2, plain) == 400 + 450
    # It waits until there are two nodes again.
    both = [Event(500.0, "a", False), Event(500.0, "b", False), Event(700.0, "d", True)]
    assert plain_rayjob([*nodes, *both], 1000.0, 2, plain) == 400 + 260
    assert oracle_s([*nodes, *both], 1000.0, 2) == 800.0


async def test_the_operator_brings_a_run_through_losses_of_spot_nodes(apiserver):
    """One node, then two at once, for which there is one more only later. Their Node objects stay:
    only the operator brings their pods away.
    """
    hour = 3600.0
    nodes = [Event(0.0, f"spot-{number}", True) for number in (1, 2, 3)]
    losses = [
        Event(6 * hour, "spot-1", False),
        Event(12 * hour, "spot-2", False),
        Event(12 * hour, "spot-3", False),
        Event(12 * hour, "spot-4", True),
        Event(18 * hour, "spot-5", True),
    ]
    events, end = [*nodes, *losses], 24 * hour
    async with asyncio.timeout(300):
        ours = await replay(apiserver, events, end, 2, SHORT, SPEED, gone_s=math.inf)
    assert (ours.attempt, ours.restarts, ours.recoveries) == (1, 0, 2)
    assert ours.hits == ours.counted == 3
    oracle = oracle_s(events, end, 2)
    assert oracle == end - 6 * hour
    assert 0.97 * oracle < ours.trained_s < oracle
