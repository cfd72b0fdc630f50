"""What must hold after every reconcile, whatever happened."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainingrun.api.failures_spec import Failures
from trainingrun.api.status import MOST_LOSSES, LossReason, RunStatus
from trainingrun.reconciling import Plan
from trainingrun.reconciling.losses.counting import COUNTERS
from trainingrun.reconciling.model import Apply, Delete

from ..reconciled import DOCUMENTED

if TYPE_CHECKING:
    from .story import Story

MOST_STATUS_BYTES = 64_000

STUCK_S = 3600.0
"""Without training for so long, though nothing happens and all is well, needs a sentence."""

EXPLAINING = (
    ("Waiting", "True"),
    ("Stalled", "True"),
    ("Accepted", "False"),
    ("Suspended", "True"),
)
"""Conditions of which one says why nothing moves."""

OF_RULES = ("FailedByRule", "RuleExhausted")

NODE, APPLICATION, MEMORY = "node", "application", "oom"

UNSEEN = frozenset({"staleness", "crd", "failover", "silence", "records"})
"""Groups of faults that may keep the news of a loss from the operator."""

COUNTED_WITHIN_S = 120.0
"""A loss is counted so soon: two signs of a lost node, and a driver's last document, take most of
a minute.
"""


@dataclass(frozen=True)
class Before:
    """What was so before a reconcile."""

    status: dict[str, Any]
    trained_well: bool
    running: int | None
    """Number of the attempt that the status calls running."""
    unused: frozenset[str]
    """Names of the pods that a healthy training does not use: their deletion was asked for, or it
    goes on without them."""

    @classmethod
    def of(cls, story: Story) -> Before:
        """Now."""
        attempts = story.status.get("attempts") or [{}]
        last = attempts[-1]
        running = last.get("number") if last.get("outcome") == "Running" else None
        driver = story.world.driver
        group = [driver.head, *driver.group] if driver else []
        unused = frozenset(
            pod.name for pod in story.world.pods if pod.terminating or (group and pod not in group)
        )
        return cls(story.status, story.world.trains_well(), running, unused)


def hold(story: Story, before: Before, made: Plan) -> None:
    """Every invariant of one reconcile."""
    after = story.status
    _one_attempt(after)
    _terminal_stays(before.status, after)
    _healthy_goes_on(story, before, made)
    _deleted_trains_no_more(story, made)
    _counts(story, after)
    _pays_once(story, after)
    _in_the_history(after)
    _adds_up(after)
    _small(after)
    _explained(story, after)
    _documented(after)
    if "completionTime" in after and "completionTime" not in before.status:
        _justified(story, after)


def at_rest(story: Story) -> None:
    """What holds once reconciles change nothing more."""
    _each_is_counted(story)
    running = Before.of(story).running
    operator = story.operator
    if running is None or "RayJob" in operator.stale or operator.kuberay == "missing":
        return
    if ("delete", "RayJob") in operator.refuses:
        return
    left = [
        number
        for number, job in story.world.jobs.items()
        if number < running and "deletionTimestamp" not in job["metadata"]
    ]
    assert not left, f"attempt {running} runs beside RayJobs {left}"
    _all_workers_are_asked_for(story)


def _all_workers_are_asked_for(story: Story) -> None:
    """Once its driver is submitted, no attempt stays smaller than its spec, whatever began it."""
    world, operator = story.world, story.operator
    if operator.stale or operator.late or operator.refuses or operator.spec.get("suspend"):
        return
    for cluster in world.clusters:
        job = world.jobs.get(cluster.number)
        if job is None or "deletionTimestamp" in job["metadata"] or job["spec"].get("suspend"):
            continue
        if (job["status"]["jobDeploymentStatus"], cluster.number) == ("Running", world.number()):
            (group,) = cluster.object["spec"]["workerGroupSpecs"]
            wanted = world.count + world.standby
            assert group["replicas"] == wanted, f"{group['replicas']} of {wanted} pods"


def _one_attempt(after: dict[str, Any]) -> None:
    attempts = after.get("attempts") or []
    numbers = [attempt["number"] for attempt in attempts]
    assert numbers == sorted(set(numbers)), f"attempts {numbers}"
    running = [attempt["number"] for attempt in attempts if attempt["outcome"] == "Running"]
    assert running in ([], numbers[-1:]), f"attempts {running} run of {numbers}"


def _terminal_stays(before: dict[str, Any], after: dict[str, Any]) -> None:
    if "completionTime" not in before:
        return
    for name in ("completionTime", "phase", "attempts", "disruptions", "result", "restarts"):
        assert before.get(name) == after.get(name), f"{name} changed after the end"


def _healthy_goes_on(story: Story, before: Before, made: Plan) -> None:
    if not before.trained_well or before.running is None:
        return
    spec = story.operator.spec
    if story.operator.deleted or story.world.number() != before.running:
        return
    deleted = [
        action.ref.name
        for action in made.actions
        if isinstance(action, Delete)
        and action.ref.kind != "TrainingRun"
        and not (action.ref.kind == "RayJob" and _number(action.ref.name) < before.running)
        and not (action.ref.kind == "Pod" and action.ref.name in before.unused)
    ]
    assert not deleted, f"deletes {deleted} of a healthy attempt"
    ended = next(
        (a for a in made.status.attempts if a.number == before.running and a.outcome != "Running"),
        None,
    )
    if ended is None or spec.get("suspend"):
        return
    failed = next((c for c in made.status.conditions if c.type == "Failed"), None)
    reason = failed.reason if failed and failed.status == "True" else ""
    if reason == "DeadlineExceeded" and spec.get("activeDeadlineSeconds"):
        return
    used = _used(made.status.to_dict()).get(reason, 0)
    if used > _used(before.status).get(reason, 0):
        return  # just now
    if reason in OF_RULES and _met(made.status.to_dict()) > _met(before.status):
        return  # of a loss of which more is known, too
    raise AssertionError(f"ends a healthy attempt: {ended.outcome} {ended.message}")


def _deleted_trains_no_more(story: Story, made: Plan) -> None:
    if not story.operator.deleted:
        return
    begun = [action for action in made.actions if isinstance(action, Apply)]
    assert not begun, f"begins an attempt of a deleted run: {begun}"
    running = [known.number for known in made.status.attempts if known.outcome == "Running"]
    assert not running, f"attempts {running} of a deleted run are shown as running"
    assert made.status.phase in ("Deleting", "Succeeded", "Failed"), made.status.phase


def _met(status: dict[str, Any]) -> int:
    """How often rules were met, whatever rules there were."""
    counts = status.get("seen", {}).get("ruleCounts", {})
    return sum(count.get("matches", 0) for count in counts.values())


def _number(ray_job: str) -> int:
    return int(ray_job.rpartition("-")[2])


def _used(status: dict[str, Any]) -> dict[str, int]:
    """What is counted against each budget, by the reason of a run that has used it up."""
    counts = RunStatus.model_validate({"disruptions": status.get("disruptions", {})}).disruptions
    errors = counts.application_errors + counts.out_of_memory
    losses = _total(status) - errors - counts.hangs
    losses += int(status.get("seen", {}).get("otherLosses", 0))
    return {"RestartsExhausted": errors, "PreemptionsExhausted": losses}


def _total(status: dict[str, Any]) -> int:
    counts = RunStatus.model_validate({"disruptions": status.get("disruptions", {})}).disruptions
    return sum(counts.model_dump(exclude={"history"}).values())


def _each_is_counted(story: Story) -> None:
    """What was lost is counted, each once, soon after its news have arrived: exactly, where each
    loss came alone.
    """
    world, unseen = story.world, UNSEEN & set(story.groups)
    if unseen or world.kuberay_away or story.over or story.operator.deleted:
        return
    least, most = 0, 0
    for loss in world.losses:
        seen_since = max(loss.time, story.away_until, world.kuberay_back_at)
        least += loss.alone and world.now - seen_since >= COUNTED_WITHIN_S
        # Workers that run out of memory together may be gone before their kubelets tell why.
        most += 1 if loss.alone and loss.kind != MEMORY else max(loss.pods, 1)
    counted = _total(story.status) + int(story.status.get("seen", {}).get("otherLosses", 0))
    assert least <= counted <= most, f"{counted} losses are counted of {least} to {most}"


def _counts(story: Story, after: dict[str, Any]) -> None:
    """No loss is counted twice: the true losses are the most that may be counted."""
    counted = RunStatus.model_validate({"disruptions": after.get("disruptions", {})}).disruptions
    losses = story.world.losses
    by_kind: dict[str, int] = {}
    incidents: dict[str, int] = {}
    for loss in losses:
        by_kind[loss.kind] = by_kind.get(loss.kind, 0) + max(loss.pods, 1)
        incidents[loss.kind] = incidents.get(loss.kind, 0) + 1
    true = sum(number for kind, number in by_kind.items() if kind not in ("attempt", APPLICATION))
    if "staleness" in story.groups or "crd" in story.groups:
        # Without news of RayJobs, a whole attempt that goes is seen as the loss of its head.
        true += incidents.get("attempt", 0)
    total = _total(after) - counted.application_errors
    assert total <= true, f"{total} losses are counted of {true}: {counted}"
    others = int(after.get("seen", {}).get("otherLosses", 0))
    most = true + incidents.get("attempt", 0) + incidents.get(APPLICATION, 0)
    assert total + others <= most, f"{total} + {others} losses are counted of {most}"
    assert counted.application_errors <= incidents.get(APPLICATION, 0), f"{counted} {incidents}"
    of_memory = incidents.get(MEMORY, 0) + story.world.later_causes[MEMORY]
    assert counted.out_of_memory <= of_memory, f"{counted} {incidents}"
    of_nodes = incidents.get(NODE, 0) + story.world.later_causes[NODE]
    assert counted.node_losses <= of_nodes + incidents.get("preempted", 0), counted


def _pays_once(story: Story, after: dict[str, Any]) -> None:
    """No rule is met, and no failure forgiven, more often than there was one to meet or forgive."""
    causes = sum(max(loss.pods, 1) for loss in story.world.losses)
    causes += sum(story.world.later_causes.values())
    assert _met(after) <= causes, f"rules are met {_met(after)} times by {causes} failures"
    for use in after.get("failureRules") or ():
        assert 0 <= use["used"] <= use["matches"], use
    for name, forgiven in after.get("seen", {}).get("forgiven", {}).items():
        assert 0 <= forgiven <= causes, f"{forgiven} failures of {name} are forgiven of {causes}"


def _in_the_history(after: dict[str, Any]) -> None:
    """Each loss that is counted has one entry, and no other loss has one."""
    found = RunStatus.model_validate({"disruptions": after.get("disruptions", {})}).disruptions
    numbers = [loss.number for loss in found.history]
    assert numbers == sorted(set(numbers)), numbers
    assert len(numbers) <= MOST_LOSSES, numbers
    if len(numbers) == MOST_LOSSES:
        return  # older ones are left out
    others, entries = 0, Counter[str]()
    for loss in found.history:
        field = COUNTERS.get(loss.reason)
        if loss.reason is LossReason.APPLICATION_ERROR:
            field = "application_errors"
        if field is None:
            others += 1
        else:
            entries[field] += 1
    for field, counted in found.model_dump(exclude={"history", "out_of_memory"}).items():
        spare = entries[field] - counted
        assert spare >= 0, f"{field}: {counted} are counted, {found.history}"
        others += spare  # an attempt's end of that reason, which counts as another loss
    assert others <= int(after.get("seen", {}).get("otherLosses", 0)), found
    assert entries["out_of_memory"] >= found.out_of_memory, found


def _adds_up(after: dict[str, Any]) -> None:
    """Every second is in exactly one place."""
    goodput = after.get("goodput")
    if goodput is not None:
        total = goodput["productiveSeconds"] + sum(goodput["lostSeconds"].values())
        assert abs(total - goodput["seconds"]) < 0.01, goodput
        assert min(goodput["productiveSeconds"], *goodput["lostSeconds"].values()) >= 0, goodput
    cost = after.get("cost")
    if cost is not None:
        assert abs(sum(cost["seconds"].values()) - cost["totalSeconds"]) < 0.01, cost
        assert min(cost["seconds"].values()) >= 0, cost


def _small(after: dict[str, Any]) -> None:
    size = len(json.dumps(after))
    assert size <= MOST_STATUS_BYTES, f"the status has {size} bytes"


def _explained(story: Story, after: dict[str, Any]) -> None:
    world, operator = story.world, story.operator
    if operator.stale or not all(node.well for node in world.nodes.values()):
        return
    quiet = world.now - max(story.last_fault, story.last_trained, story.awake_since)
    over = "completionTime" in after or operator.deleted
    if quiet < STUCK_S or over or operator.spec.get("suspend"):
        return
    conditions = {c["type"]: c for c in after.get("conditions") or ()}
    said = [
        c.get("message")
        for type_, status in EXPLAINING
        if (c := conditions.get(type_)) and c["status"] == status
    ]
    waits = after.get("nextAttemptTime", "") > story.stamp()
    assert any(said) or waits or after.get("phase") == "Queued", (
        f"stuck for {quiet:.0f} s without a sentence: {after.get('phase')}"
    )


def _documented(after: dict[str, Any]) -> None:
    for known in after.get("conditions") or ():
        found = (known["type"], known["status"], known["reason"])
        assert found in DOCUMENTED, f"{found} is missing in docs/conditions.md"


def _justified(story: Story, after: dict[str, Any]) -> None:
    """A run that ends has truly done all of its steps, or failed by its spec of that moment for
    what has truly happened.
    """
    world, spec = story.world, story.operator.spec
    if after["phase"] == "Succeeded":
        assert world.bucket.done, f"Succeeded at step {world.bucket.step} of {world.total_steps}"
        return
    failed = next(c for c in after["conditions"] if c["type"] == "Failed")
    assert failed["message"], "Failed without a sentence"
    failures = Failures.model_validate(spec.get("failures", {}))
    rules = failures.failure_rules
    causes = sum(max(loss.pods, 1) for loss in world.losses) + sum(world.later_causes.values())
    errors = sum(loss.kind in (APPLICATION, MEMORY) for loss in world.losses)
    errors += world.later_causes[MEMORY]
    in_vain = story.operator.begun_at.count(story.operator.checkpoint)
    deadline_s = spec.get("activeDeadlineSeconds")
    match failed["reason"]:
        case "DeadlineExceeded":
            holds = deadline_s is not None and world.now >= deadline_s
        case "RestartsExhausted":
            holds = errors > failures.max_restarts
        case "PreemptionsExhausted":
            holds = 0 <= failures.max_preemptions < causes
        case "NoProgress":
            holds = in_vain >= failures.max_attempts_without_progress
        case "FailedByRule":
            holds = causes > 0 and any(rule.then == "Fail" for rule in rules)
        case "RuleExhausted":
            most = [rule.max_restarts for rule in rules if rule.max_restarts is not None]
            holds = any(causes > number for number in most)
        case "Rejected":
            holds = after["attempt"] in world.refused
        case _:
            holds = False
    assert holds, (
        f"Failed for {failed['reason']}: {failed['message']}; there were {errors} errors among "
        f"{causes} causes, and {in_vain} attempts without a newer checkpoint"
    )
