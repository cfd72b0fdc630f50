"""The replay of days on spot nodes: its traces, what it computes, and a short day of it."""

import asyncio
import math

import pytest

from benchmarks.spot_replay import (
    TRACES,
    Event,
    Plain,
    measured_plain,
    measured_stages,
    modelled_day,
    oracle_s,
    plain_rayjob,
    read_trace,
    replay,
    replayed_events,
)
from support.simulated_nodes import Stages

MODELLED = TRACES / "modelled-33-losses.csv"
SPEED = 8.0
SHORT = Stages(begin=20.0, pod=8.0, group=8.0, notice=16.0)


def test_the_modelled_day_is_the_model_s():
    assert read_trace(MODELLED) == modelled_day(seed=1)
    events, end = replayed_events(modelled_day(seed=1), workers=4, seed=1)
    assert sum(not event.comes for event in events) == 33
    assert end == 86400


@pytest.mark.parametrize("file", sorted(TRACES.glob("*.csv")), ids=lambda file: file.stem)
def test_a_trace_says_where_it_is_from_and_has_nodes_for_a_run(file):
    assert file.read_text().startswith(("# Recorded: ", "# Modelled: "))
    events, end = replayed_events(read_trace(file), workers=4, seed=1)
    alive = set()
    for event in events:
        assert (event.node in alive) != event.comes
        alive ^= {event.node}
    assert 0 < oracle_s(events, end, 4) <= end


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("seconds,nodes\n0,4\n", "columns"),
        ("# nothing\n", "columns"),
        ("seconds,instances\n5,4\n5,3\n", "not more"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused(tmp_path, text, wrong):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=wrong):
        read_trace(file)


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


def test_the_stages_are_the_measured_ones():
    stages = measured_stages()
    assert min(stages.begin, stages.pod, stages.group, stages.notice) > 0
    assert measured_plain().restart > stages.group


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
