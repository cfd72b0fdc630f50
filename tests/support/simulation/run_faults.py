"""What can happen to the runtime and the operator, and what queues, users and time do."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from .fault_groups import fault

if TYPE_CHECKING:
    from .story import Story


LATE_S = 8.0
"""How late the events of a watch that is open may be."""

MOST_LATE = 5
"""Requests of former leaders in one story."""

# The runtime


@fault("runtime")
def training_raises(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over:
        kind = ("Application", "Storage", "Infrastructure")[choice % 3]
        observed = not story.deafening
        story.world.lose("application" if kind == "Application" or not observed else "attempt")
        driver.fail(story.world.now, 1, {"kind": kind, "message": "ValueError: " + "x" * 200})


@fault("runtime")
def driver_ends_without_a_word(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over:
        story.world.lose("application" if choice % 2 else "attempt")
        driver.mute = bool(choice % 4 > 1)
        driver.fail(story.world.now, 1 if choice % 2 else 3, None)


@fault("silence")
def driver_hangs(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over and driver.fencing_token == 0:
        driver.hung = True


@fault("silence")
def driver_says_nothing(story: Story, choice: int) -> None:
    driver = story.world.driver
    if driver and not driver.over:
        driver.mute = bool(choice % 2)


@fault("silence")
def polls_fail(story: Story, choice: int) -> None:
    """A NetworkPolicy, or a token that the head does not take."""
    story.world.polls_fail = bool(choice % 2)


@fault("runtime")
def bucket_goes_away(story: Story, choice: int) -> None:
    world = story.world
    world.storage_since = world.now if choice % 2 else None
    if world.driver:
        world.driver.storage_since = world.storage_since


@fault("records")
def records_name_no_pods(story: Story, choice: int) -> None:
    story.world.anonymous_records = bool(choice % 2)
    if story.world.driver:
        story.world.driver.anonymous = bool(choice % 2)


@fault("records")
def an_old_document_is_read_late(story: Story, choice: int) -> None:
    history = story.documents
    if history:
        story.operator.late_document = history[choice % len(history)]


# The operator and its view


@fault("staleness")
def a_watch_fails(story: Story, choice: int) -> None:
    kind = ("Pod", "RayJob", "RayCluster", "Node")[choice % 4]
    message = "pods is forbidden: User cannot list resource"
    story.operator.freeze(kind, message, empty=choice % 3 == 0)
    if choice % 3 == 0:
        story.operator.restart()


@fault("staleness")
def all_watches_work_again(story: Story, choice: int) -> None:
    story.operator.stale.clear()


REFUSABLE = (
    ("create", "RayJob"),
    ("create", "Secret"),
    ("create", "NetworkPolicy"),
    ("delete", "Pod"),
    ("delete", "RayJob"),
    ("change", "RayCluster"),
)


@fault("refusals")
def objects_are_refused(story: Story, choice: int) -> None:
    """Of one kind or of two, or none any more."""
    message = ("exceeded quota: team", "admission webhook denied the request")[choice % 2]
    kinds = {REFUSABLE[choice % 6], REFUSABLE[choice // 6 % 6]} if choice < 180 else set()
    story.operator.refuses = dict.fromkeys(kinds, message)


@fault("restarts")
def operator_restarts(story: Story, choice: int) -> None:
    story.operator.restart()


@fault("restarts")
def operator_is_away(story: Story, choice: int) -> None:
    story.operator.restart()
    story.operator.down = True
    story.wait((10, 60, 300, 700, 3600, 90000)[choice % 6])
    story.operator.down = False
    story.awake_since = story.away_until = story.world.now


@fault("failover")
def a_standby_that_lags_begins_to_lead(story: Story, choice: int) -> None:
    """Its watch of one kind is open, and its events are late by some seconds."""
    kind = ("Pod", "RayJob", "RayCluster", "Node")[choice % 4]
    late = [view for view in story.views if story.world.now - view.time <= LATE_S]
    if late:
        story.operator.restart()
        story.operator.lag(kind, late[choice // 4 % len(late)])


@fault("failover")
def a_leader_is_stopped_and_goes_on(story: Story, choice: int) -> None:
    """The process remembers what it knew before, and all timers are late."""
    story.operator.down = True
    story.wait((8, 30, 120, 700)[choice % 4])
    story.operator.down = False
    story.awake_since = story.world.now


@fault("failover")
def a_former_leader_creates_its_attempt_late(story: Story, choice: int) -> None:
    """It was stopped between its last check that it leads and the request."""
    world = story.world
    ended = [a["number"] for a in story.status.get("attempts", ()) if a["outcome"] != "Running"]
    late = [number for number in ended if number in world.manifests and number not in world.jobs]
    if late and not world.run_deleted and world.created_late < MOST_LATE:
        world.add_late_job(late[choice % len(late)])


# The queue and the user


@fault("queue")
def queue_takes_back(story: Story, choice: int) -> None:
    job = story.world.jobs.get(story.world.number())
    if job and not job["spec"]["suspend"] and job["status"]["jobDeploymentStatus"] == "Running":
        story.world.lose("queue")
        job["spec"]["suspend"] = True


@fault("queue")
def queue_admits(story: Story, choice: int) -> None:
    for job in story.world.jobs.values():
        job["spec"]["suspend"] = False


@fault("suspend")
def user_suspends(story: Story, choice: int) -> None:
    story.change(suspend=True)


@fault("suspend")
def user_resumes(story: Story, choice: int) -> None:
    story.change(suspend=False)


@fault("suspend")
def runtime_is_deaf(story: Story, choice: int) -> None:
    story.operator.deaf = bool(choice % 2)


@fault("budgets")
def user_changes_max_restarts(story: Story, choice: int) -> None:
    failures = copy.deepcopy(story.operator.spec.get("failures", {}))
    story.change(failures={**failures, "maxRestarts": choice % 5})


@fault("budgets")
def user_changes_max_preemptions(story: Story, choice: int) -> None:
    failures = copy.deepcopy(story.operator.spec.get("failures", {}))
    story.change(failures={**failures, "maxPreemptions": choice % 20 - 1})


RULES = [
    [
        {"when": {"classes": ["OutOfMemory"]}, "then": "Ignore"},
        {
            "when": {"reasons": ["Error"], "exitCodes": [1, 137]},
            "then": "Restart",
            "maxRestarts": 2,
        },
        {"when": {"classes": ["ApplicationError"]}, "then": "Ignore", "backoff": {}},
    ],
    [
        {"when": {"classes": ["Preempted", "NodeLost", "HeadLost"]}, "then": "Ignore"},
        {"when": {"exitCodes": [137]}, "then": "Restart", "maxRestarts": 1},
        {"when": {"classes": ["WorkerLost", "Hang"]}, "then": "RestartOnOtherNode"},
        {"when": {"classes": ["InfrastructureError"]}, "then": "Fail"},
    ],
    [
        {"when": {"classes": ["Preempted", "ApplicationError"]}, "then": "RestartOnDemand"},
        {"when": {"exitCodes": [137]}, "then": "RestartOnDemand", "maxRestarts": 2},
    ],
    [
        {"when": {"classes": ["Preempted", "NodeLost", "OutOfMemory"]}, "then": "Ignore"},
        {"when": {"classes": ["WorkerLost"], "exitCodes": [1]}, "then": "Restart"},
        {"when": {"classes": ["WorkerLost"]}, "then": "Fail"},
    ],
]
"""Values of failures.rules."""


@fault("budgets")
def user_changes_rules(story: Story, choice: int) -> None:
    failures = copy.deepcopy(story.operator.spec.get("failures", {}))
    story.change(failures={**failures, "rules": [*RULES, []][choice % 5]})


@fault("budgets")
def user_sets_a_deadline(story: Story, choice: int) -> None:
    story.change(activeDeadlineSeconds=(None, 600, 3600, 86400)[choice % 4])


@fault("spec")
def spec_becomes_invalid(story: Story, choice: int) -> None:
    story.operator.broken_spec = bool(choice % 2)
    story.operator.generation += 1


@fault("finalizer")
def run_is_deleted_and_held(story: Story, choice: int) -> None:
    """Someone else's finalizer is on the run when its user deletes it."""
    if choice % 4 == 0:
        story.operator.deleted = True


@fault("finalizer")
def finalizer_of_someone_else_is_removed(story: Story, choice: int) -> None:
    if story.operator.deleted and choice % 4 == 0:
        story.world.run_deleted = True


@fault("end")
def training_is_nearly_done(story: Story, choice: int) -> None:
    story.finish_soon()


# Time


@fault("time")
def a_while_passes(story: Story, choice: int) -> None:
    story.wait((30, 60, 120, 300, 700, 1800)[choice % 6])


@fault("time")
def long_passes(story: Story, choice: int) -> None:
    story.wait((3600, 7200, 86400, 3 * 86400)[choice % 4])
