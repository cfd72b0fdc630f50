"""An operator that dies between any two lines costs time and nothing else."""

import copy
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small_cluster import Event, SmallCluster
from trainingrun.api.status import Phase


def trains(cluster: SmallCluster) -> None:
    cluster.train(10 * max(cluster.created))


def raises(cluster: SmallCluster) -> None:
    step = 10 * max(cluster.created)
    cluster.train(step, state="Failed", failure={"kind": "Application", "message": "ValueError"})


def loses_its_bucket(cluster: SmallCluster) -> None:
    step = 10 * max(cluster.created)
    cluster.train(step, state="Failed", failure={"kind": "Storage", "message": "403"})


def is_deleted_by_a_user(cluster: SmallCluster) -> None:
    for job in cluster.jobs.values():
        job["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"


def is_suspended(cluster: SmallCluster) -> None:
    cluster.spec["suspend"] = True
    if cluster.jobs:
        cluster.train(10 * max(cluster.created), state="Suspended")


def is_resumed(cluster: SmallCluster) -> None:
    cluster.spec["suspend"] = False


def succeeds(cluster: SmallCluster) -> None:
    cluster.train(100, state="Succeeded", result={"metrics": {"accuracy": 0.9}})


STORY: list[Event] = [
    trains,
    raises,
    trains,
    loses_its_bucket,
    is_deleted_by_a_user,
    trains,
    is_suspended,
    is_resumed,
    succeeds,
]

LOOKS = 8
"""Looks after each event: an attempt is cleared away, its backoff passes and the next begins."""


def goes_on(cluster: SmallCluster, event: Event | None, crashes: dict[int, int]) -> SmallCluster:
    """One event and what follows; `crashes` maps the number of a look to the actions it gets."""
    if event and (cluster.jobs or event in (is_suspended, is_resumed)):
        event(cluster)
    for look in range(LOOKS + len(crashes)):
        cluster.look(crashes.get(look))
        cluster.step(6)
    return cluster


def a_cluster() -> SmallCluster:
    return goes_on(SmallCluster({"failures": {"maxRestarts": 5}}), None, {})


def summary(cluster: SmallCluster) -> object:
    """What must not depend on crashes: everything but times."""
    status = cluster.status
    return (
        status.phase,
        cluster.created,
        [(attempt.number, attempt.outcome, attempt.reason) for attempt in status.attempts],
        status.disruptions,
        status.restarts,
        status.seen.get("otherLosses"),
        status.seen.get("fruitless"),
        status.result,
        list(cluster.jobs),
        [pod["metadata"]["uid"] for pod in cluster.pods],
    )


@pytest.fixture(scope="module")
def chapters() -> list[SmallCluster]:
    """The undisturbed story: the cluster after each event."""
    found = [a_cluster()]
    for event in STORY:
        found.append(goes_on(copy.deepcopy(found[-1]), event, {}))
    return found


def test_the_undisturbed_story_is_as_it_was_meant(chapters: list[SmallCluster]) -> None:
    end = chapters[-1]
    assert [attempt.outcome for attempt in end.status.attempts] == [
        "Failed",
        "Lost",
        "Lost",
        "Suspended",
        "Succeeded",
    ]
    assert end.status.phase is Phase.SUCCEEDED
    assert (end.status.restarts, end.status.disruptions.application_errors) == (1, 1)
    assert (end.jobs, end.pods) == ({}, [])


@pytest.mark.parametrize("chapter", range(len(STORY)), ids=[e.__name__ for e in STORY])
def test_a_crash_after_any_action_of_any_look_changes_nothing_but_time(
    chapters: list[SmallCluster], chapter: int
) -> None:
    for look, actions in product(range(5), range(5)):
        begins = copy.deepcopy(chapters[chapter])
        ends = goes_on(begins, STORY[chapter], {look: actions})
        assert summary(ends) == summary(chapters[chapter + 1]), (look, actions)


EVENTS = st.sampled_from(sorted(set(STORY), key=lambda event: event.__name__))
CRASHES = st.dictionaries(st.integers(0, 6), st.integers(0, 4), max_size=4)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(EVENTS, CRASHES), max_size=6))
def test_no_story_and_no_crashes_ever_make_two_attempts_at_once(
    story: list[tuple[Event, dict[int, int]]],
) -> None:
    crashing, undisturbed = a_cluster(), a_cluster()
    for event, crashes in story:
        goes_on(crashing, event, crashes)  # the cluster itself watches for two at once
        goes_on(undisturbed, event, {})
    numbers = [attempt.number for attempt in crashing.status.attempts]
    assert numbers == sorted(set(numbers))
    assert summary(crashing) == summary(undisturbed)
