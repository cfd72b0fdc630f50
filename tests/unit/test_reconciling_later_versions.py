"""What a later version has written is read as far as this one understands it: after a rollback of
the operator, beside the CRD of a later one, and from a newer training image.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.builders import UID, a_progress, a_ray_job, at, unix
from support.reconciled import a_polled_run, a_training_run, condition, reconcile, then, wanting
from trainingrun.api.crd import crd, schema
from trainingrun.api.parse import InvalidRunError
from trainingrun.api.parse import parse as validate
from trainingrun.api.status import ConditionType, RunStatus
from trainingrun.cluster.parsing import parse
from trainingrun.controller.progress_polling import DocumentError, read_document
from trainingrun.reconciling import Observed
from trainingrun_protocol.progress import Progress, RunState, TrialState

NEW = "OnlyALaterVersionKnowsIt"
Path = tuple[str, ...]


def a_manifest(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A run as the API server has it."""
    return {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {
            "name": "digits",
            "namespace": "team-a",
            "uid": UID,
            "resourceVersion": "1",
            "generation": 1,
        },
        "spec": {
            "training": {"function": "examples.digits:train", "config": {"lr": 0.1}},
            "storage": {"uri": "s3://runs/team-a"},
            **spec,
        },
        "status": status or {},
    }


def status_of(raw: dict[str, Any]) -> RunStatus:
    return parse(a_manifest(raw))[0].status


def read(observed: Observed, status: dict[str, Any]) -> Observed:
    """The same after a rollback: its status is this one, of a later operator."""
    run = observed.run.model_copy(update={"status": status_of(status)})
    return replace(observed, run=run)


# The status.


def lists(node: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, int, bool]]:
    """Where a status has lists that the CRD bounds, and their bounds."""
    for name, child in node.get("properties", {}).items():
        if "maxItems" in child:
            yield (*path, name), child["maxItems"], "required" in child["items"]
        if name != "defaults":
            yield from lists(child, (*path, name))


def sample(node: dict[str, Any], number: int) -> Any:
    """A value that the CRD allows, another one for each number."""
    if node["type"] == "object":
        names = node.get("required", ())
        return {name: sample(node["properties"][name], number) for name in names}
    if "enum" in node:
        return node["enum"][number % len(node["enum"])]
    return {"integer": number, "number": number, "boolean": True}.get(node["type"], f"s{number}")


def with_entries(node: dict[str, Any], path: Path, entries: list[Any]) -> dict[str, Any]:
    """A status with this list there."""
    name, *rest = path
    child = node["properties"][name]
    found = with_entries(child, tuple(rest), entries) if rest else entries
    return {**sample(node, 1), name: found}


def at_path(found: Any, path: Path) -> Any:
    for name in path:
        found = found[name]
    return found


STATUS = schema(RunStatus)
BOUNDED = list(lists(STATUS))


def test_the_crd_bounds_the_lists_of_a_status() -> None:
    stored = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert [(path, most) for path, most, _ in lists(stored)] == [each[:2] for each in BOUNDED]
    assert {("conditions",), ("attempts",), ("disruptions", "history")} <= {
        path for path, *_ in BOUNDED
    }


@pytest.mark.parametrize(("path", "most", "of_objects"), BOUNDED, ids=str)
def test_a_list_that_a_later_version_made_longer_is_read_up_to_this_one_s_bound(
    path: Path, most: int, of_objects: bool
) -> None:
    node = STATUS
    for name in path:
        node = node["properties"][name]
    entries = [sample(node["items"], number) for number in range(most + 5)]
    raw = with_entries(STATUS, path, entries)
    kept = entries[:most] if path == ("result", "trials") else entries[-most:]  # the best is first
    found = at_path(status_of(raw).to_dict(), path)
    assert len(found) == most
    if not of_objects:
        assert found == kept
        return
    assert [{name: one[name] for name in kept[0]} for one in found] == kept
    odd = with_entries(STATUS, path, [*kept, 5])
    assert at_path(status_of(odd).to_dict(), path) == found, "what is no entry has no place"


@pytest.mark.parametrize("place", range(len(ConditionType) + 1))
def test_a_condition_that_only_a_later_version_has_takes_no_other_one_with_it(place: int) -> None:
    types = [kind.value for kind in ConditionType]
    types.insert(place, NEW)
    conditions = [
        {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": at(0)}
        for kind in types
    ]
    found = status_of({"conditions": conditions}).conditions
    assert [known.type for known in found] == list(ConditionType)


def test_an_attempt_that_runs_is_not_begun_anew_because_a_later_version_kept_more_of_them() -> None:
    training = a_polled_run()
    (running,) = training.run.status.to_dict()["attempts"]
    ended = {**running, "outcome": "Lost", "endTime": at(0)}
    status = training.run.status.to_dict() | {"attempt": 25}
    status["attempts"] = [
        *({**ended, "number": number, "rayJob": f"digits-{number}"} for number in range(1, 25)),
        {**running, "number": 25, "rayJob": "digits-25", "lastStep": 7},
    ]
    observed = read(replace(training, ray_jobs=(a_ray_job(25, status="RUNNING"),)), status)
    after = reconcile(observed).status.attempts
    assert [one.number for one in after] == list(range(6, 26))
    assert (after[-1].outcome, after[-1].last_step) == ("Running", 7)


@pytest.fixture
def suspended() -> Observed:
    """A run of which every pod is gone."""
    saved = a_progress(state="Suspended", step=20)
    ended = then(replace(wanting(a_polled_run(), suspend=True), progress=saved), 60)
    return then(replace(ended, ray_jobs=(), ray_clusters=(), pods=(), confirmed=True), 70)


def test_an_attempt_whose_end_has_a_word_of_a_later_version_is_not_ended_once_more(
    suspended: Observed,
) -> None:
    status = suspended.run.status.to_dict()
    status["attempts"][-1]["outcome"] = NEW
    before, planned = read(suspended, status), reconcile(read(suspended, status), 80)
    assert before.run.status.running_attempt is None
    (attempt,) = planned.status.attempts
    assert attempt == before.run.status.attempts[0]
    assert (attempt.outcome, attempt.reason, attempt.end_time) == ("Lost", "Suspended", at(60))
    assert planned.status.disruptions == suspended.run.status.disruptions
    assert planned.status.restarts == 0
    assert (planned.status.phase, planned.events) == ("Suspended", ())
    assert condition(planned, "Suspended").status == "True"


def test_an_attempt_of_which_such_a_word_is_said_while_it_runs_goes_on() -> None:
    training = a_polled_run()
    status = training.run.status.to_dict()
    status["attempts"][-1]["outcome"] = NEW
    planned = reconcile(read(training, status))
    assert planned == reconcile(training)
    assert planned.status.phase == "Running"


# The spec.


LATER = {
    "checkpoints": {"compress": "zstd", "everySeconds": 60},
    "workers": {"count": 2, "capacity": {"type": "Spot", "pool": {"name": "a"}}},
    "failures": {"rules": [{"when": {"exitCodes": [3], "later": 1}, "then": "Fail", "n": 1}]},
    "elastic": {"enabled": False},
}
"""Of a spec, with fields that a CRD of a later version has filled in."""


def known_of(value: Any) -> Any:
    """The same without these fields."""
    if isinstance(value, dict):
        later = ("compress", "pool", "later", "n", "elastic")
        return {name: known_of(item) for name, item in value.items() if name not in later}
    return [known_of(item) for item in value] if isinstance(value, list) else value


def test_a_field_that_a_later_crd_has_filled_in_refuses_no_run() -> None:
    stored = a_manifest(**copy.deepcopy(LATER))
    stored["spec"]["training"]["later"] = stored["spec"]["storage"]["later"] = True
    before = copy.deepcopy(stored)
    run, invalid = parse(stored)
    assert invalid is None
    assert run.spec == parse(a_manifest(**known_of(LATER)))[0].spec
    assert run.spec.checkpoints.every_seconds == 60
    assert stored == before, "an object of the cache"


def test_beside_such_a_field_all_else_is_checked_as_always() -> None:
    stored = a_manifest(**LATER, image="two words", suspend=True)
    stored["spec"]["storage"]["later"] = True
    run, invalid = parse(stored)
    assert invalid == parse(a_manifest(**known_of(LATER), image="two words"))[1]
    assert invalid is not None
    assert invalid.startswith("spec.image")
    assert run.spec.suspend, "the rest counts, and an attempt that runs goes on"
    assert run.spec.storage.uri == "s3://runs/team-a"


def test_what_users_write_is_refused_as_always() -> None:
    """No CRD prunes what `trainingrun validate` reads, and it keeps the fields of pods as they are,
    so that there a field that is not known is a mistake.
    """
    with pytest.raises(InvalidRunError, match=r"^spec\.checkpoints\.compress is not a field"):
        validate(a_manifest(checkpoints=LATER["checkpoints"]))
    misspelt = a_manifest(podTemplate={"spec": {"tolerationz": []}}, **LATER)
    invalid = parse(misspelt)[1]
    assert invalid is not None
    assert invalid.startswith("spec.podTemplate.spec.tolerationz is not a field of a pod")


# The progress document.


def document(**fields: Any) -> Progress:
    """What the operator reads of a driver's document; `fields` by their names in JSON."""
    known = a_progress().to_dict()
    return read_document(json.dumps({**known, **fields}).encode())


def words(node: Any, definitions: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    """Where a document has one of several words."""
    while "$ref" in node:
        node = definitions[node["$ref"].rsplit("/", 1)[-1]]
    if "enum" in node:
        yield path
    for option in node.get("anyOf", ()):
        yield from words(option, definitions, path)
    for name, child in node.get("properties", {}).items():
        yield from words(child, definitions, (*path, name))
    if "items" in node:
        yield from words(node["items"], definitions, (*path, "[]"))


PROGRESS = Progress.model_json_schema()
WORDS = list(words(PROGRESS, PROGRESS["$defs"]))
FULL: dict[str, Any] = {
    "state": "Training",
    "failure": {"kind": "Application", "message": "boom", "retry": "Never"},
    "records": [{"number": 1, "kind": "Restored", "time": unix(40)}],
    "sweep": {"metric": "loss", "trials": [{"number": 1, "state": "Succeeded", "value": 1.0}]},
    "result": {"sweep": {"metric": "loss", "trials": [{"number": 1, "state": "Failed"}]}},
}


def with_word(found: Any, path: Path, word: Any) -> Any:
    if not path:
        return word
    if path[0] == "[]":
        return [with_word(found[0], path[1:], word)]
    return {**found, path[0]: with_word(found[path[0]], path[1:], word)}


@pytest.mark.parametrize("path", WORDS, ids=".".join)
def test_no_word_of_a_newer_image_takes_the_document_with_it(path: Path) -> None:
    found = document(**with_word(FULL, path, NEW))
    assert (found.step, found.metrics, found.world_size) == (10, {"loss": 0.5}, 2)
    assert found.failure is not None
    assert not found.state.final
    with pytest.raises(DocumentError):  # what no version writes
        document(**with_word(FULL, path, 5))


def test_all_words_of_a_document_are_tried() -> None:
    assert {path[-1] for path in WORDS} == {"state", "kind", "retry"}
    assert len(WORDS) == 6


@pytest.mark.parametrize("facts", [{}, {"result": {}}, {"failure": FULL["failure"]}])
def test_a_state_that_only_a_newer_image_has_ends_nothing(facts: dict[str, Any]) -> None:
    training = a_training_run()
    told = replace(training, progress=document(state=NEW, **facts))
    planned = reconcile(told)
    assert planned.status.attempts[-1].outcome == "Running"
    assert (planned.status.phase, planned.actions) == ("Recovering", ())
    assert planned.status.attempts[-1].last_step == 10
    assert condition(planned, "Ready").status == "False", "nothing says that it trains"


def test_a_state_that_only_a_newer_image_has_is_no_success() -> None:
    """Its RayJob has failed, and a result is promised in states alone that this version knows."""
    failed = replace(a_training_run(), ray_jobs=(a_ray_job(status="FAILED", message="boom"),))
    read_last = then(replace(failed, progress=document(state=NEW, result={})), 60)
    planned = reconcile(replace(read_last, progress_age_s=0.1), 120)
    assert planned.status.attempts[-1].outcome == "Failed"
    assert not planned.status.has_ended
    known = replace(read_last, progress=document(state="Training", result={}), progress_age_s=0.1)
    assert reconcile(known, 120).status.phase == "Succeeded"


def test_a_failure_of_a_kind_that_only_a_newer_image_has_charges_no_retry_of_the_code() -> None:
    failure = {"kind": NEW, "message": "boom", "retry": NEW}
    told = replace(
        a_training_run(failures={"maxRestarts": 0}),
        progress=document(state="Failed", failure=failure),
    )
    planned = reconcile(told)
    assert planned.status.attempts[-1].outcome == "Lost"
    assert planned.status.attempts[-1].message == "boom"
    assert (planned.status.restarts, planned.status.disruptions.application_errors) == (0, 0)
    assert not planned.status.has_ended, "another attempt follows"


def test_a_failure_whose_retry_only_a_newer_image_knows_is_retried() -> None:
    failure = {"kind": "Application", "message": "boom", "retry": NEW}
    told = replace(a_training_run(), progress=document(state="Failed", failure=failure))
    planned = reconcile(told)
    assert planned.status.attempts[-1].outcome == "Failed"
    assert not planned.status.has_ended


def test_a_trial_in_a_state_that_only_a_newer_image_has_is_not_over() -> None:
    rows = [{"number": 1, "state": NEW, "value": 0.5}, {"number": 2, "state": "Succeeded"}]
    found = document(sweep={"metric": "loss", "trials": rows}).sweep
    assert found is not None
    assert [(row.state, row.value) for row in found.trials] == [
        (TrialState.RUNNING, 0.5),
        (TrialState.SUCCEEDED, None),
    ]


def test_states_that_this_version_knows_are_read_as_they_are() -> None:
    assert [document(state=state.value).state for state in RunState] == list(RunState)
