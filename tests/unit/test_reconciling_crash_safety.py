"""An operator that dies between any two lines costs time and nothing else."""

import copy
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.simulation import cluster_faults, run_faults
from support.simulation.story import Story
from support.simulation.world import World

Event = Callable[[Story], None]


def goes_on_training(story: Story) -> None:
    pass


def raises(story: Story) -> None:
    run_faults.training_raises(story, 0)


def loses_its_bucket(story: Story) -> None:
    run_faults.training_raises(story, 1)


def is_deleted_by_a_user(story: Story) -> None:
    cluster_faults.user_deletes_the_rayjob(story, 0)


def is_suspended(story: Story) -> None:
    story.change(suspend=True)


def is_resumed(story: Story) -> None:
    story.change(suspend=False)


def succeeds(story: Story) -> None:
    story.finish_soon()


STORY: list[Event] = [
    goes_on_training,
    raises,
    goes_on_training,
    loses_its_bucket,
    is_deleted_by_a_user,
    goes_on_training,
    is_suspended,
    is_resumed,
    succeeds,
]

RECONCILES = 24
"""After each event: an attempt's objects are deleted, backoff passes and the next one trains."""

PAUSE_S = 6


def goes_on(story: Story, event: Event | None, crashes: dict[int, int]) -> Story:
    """One event and what follows; `crashes` maps the number of a reconcile to its actions."""
    if event:
        event(story)
    for number in range(RECONCILES + len(crashes)):
        story.reconcile(crashes.get(number))
        story.world.pass_time(PAUSE_S)
        story.operator.poll()
    return story


def a_story() -> Story:
    backoff = {"initialSeconds": 5, "maxSeconds": 5}
    spec = {"failures": {"maxRestarts": 5, "maxAttemptsWithoutProgress": 50, "backoff": backoff}}
    return goes_on(Story(World(total_steps=100_000), spec, groups=()), None, {})


def summary(story: Story) -> object:
    """What must not depend on crashes: everything but times and steps."""
    status = story.status
    seen, disruptions = status["seen"], status["disruptions"]
    of_losses = ("number", "attempt", "reason", "pods", "node", "signs")
    losses = [
        [*(loss.get(name) for name in of_losses), bool(loss["action"])]
        for loss in disruptions["history"]
    ]
    return (
        status["phase"],
        story.world.created,
        [(a["number"], a["outcome"], a.get("reason")) for a in status["attempts"]],
        {**disruptions, "history": losses},
        status["restarts"],
        seen.get("otherLosses"),
        seen.get("attemptsWithoutProgress"),
        status.get("result", {}).get("metrics"),
        list(story.world.jobs),
        [pod.uid for pod in story.world.pods],
    )


@pytest.fixture(scope="module")
def chapters() -> list[Story]:
    """The undisturbed story: how it stands after each event."""
    found = [a_story()]
    for event in STORY:
        found.append(goes_on(copy.deepcopy(found[-1]), event, {}))
    return found


def test_the_undisturbed_story_is_as_it_was_meant(chapters: list[Story]) -> None:
    end = chapters[-1]
    assert [attempt["outcome"] for attempt in end.status["attempts"]] == [
        "Failed",
        "Lost",
        "Lost",
        "Suspended",
        "Succeeded",
    ]
    assert end.status["phase"] == "Succeeded"
    assert end.status["restarts"] == end.status["disruptions"]["applicationErrors"] == 1
    assert end.world.empty


@pytest.mark.parametrize("chapter", range(len(STORY)), ids=[e.__name__ for e in STORY])
def test_a_crash_after_any_action_of_any_reconcile_changes_nothing_but_time(
    chapters: list[Story], chapter: int
) -> None:
    for number, actions in product(range(5), range(5)):
        begins = copy.deepcopy(chapters[chapter])
        ends = goes_on(begins, STORY[chapter], {number: actions})
        assert summary(ends) == summary(chapters[chapter + 1]), (number, actions)


EVENTS = st.sampled_from(sorted(set(STORY), key=lambda event: event.__name__))
CRASHES = st.dictionaries(st.integers(0, 6), st.integers(0, 4), max_size=4)


@settings(max_examples=25)
@given(st.lists(st.tuples(EVENTS, CRASHES), max_size=6))
def test_no_story_and_no_crashes_ever_make_two_attempts_at_once(
    story: list[tuple[Event, dict[int, int]]],
) -> None:
    crashing, undisturbed = a_story(), a_story()
    for event, crashes in story:
        goes_on(crashing, event, crashes)  # the simulated cluster watches for two at once
        goes_on(undisturbed, event, {})
    assert summary(crashing) == summary(undisturbed)
