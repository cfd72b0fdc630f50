"""The commands about a cluster, against an HTTP server that answers as an API server would."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration
from typer.testing import CliRunner

from support.cli_server import RUNS, Server, call, running_server
from support.hostile_objects import nested
from trainingrun import Client
from trainingrun.api.errors import RunError
from trainingrun.cli.main import app
from trainingrun.client import defaults, following
from trainingrun.client.errors import RefusedError, UnreachableError
from trainingrun.client.kube import Kube
from trainingrun.local.terminal_text import plain, plain_lines

ALL_RUNS = "/apis/trainingrun.dev/v1alpha1/trainingruns"
HEADS = ["NAME", "PHASE", "PROGRESS", "STEP", "ATTEMPT", "PREEMPTIONS", "GOODPUT", "AGE"]


def a_run(phase: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "digits",
            "namespace": "team-a",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "status": {"phase": phase, "attempt": 1, **status},
    }


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def test_list_shows_each_run_in_a_line(server: Server) -> None:
    progress = {"step": 480, "totalSteps": 600, "percent": 80}
    run = a_run(
        "Running", progress=progress, disruptions={"preemptions": 2}, goodput={"percent": 91}
    )
    server.answers[RUNS] = [(200, {"items": [run, a_run("Queued")]})]
    code, output, _ = call("list")
    heads, first, second = (line.split() for line in output.splitlines())
    assert code == 0
    assert heads == HEADS
    assert first[:-1] == ["digits", "Running", "80%", "480/600", "1", "2", "91%"]
    assert second[:2] == ["digits", "Queued"]


def test_list_shows_every_run_beside_one_that_is_nested_too_deeply(server: Server) -> None:
    runs = json.dumps({"items": [{**a_run("Failed"), "spec": "HERE"}, a_run("Queued")]})
    server.answers[RUNS] = [(200, runs.replace('"HERE"', nested(2000)).encode())]
    code, output, _ = call("list")
    assert code == 0
    assert [line.split()[1] for line in output.splitlines()] == ["PHASE", "Failed", "Queued"]


@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        ([], RUNS, "No TrainingRuns found in namespace team-a.\n"),
        (["-A"], ALL_RUNS, "No TrainingRuns found in any namespace.\n"),
    ],
    ids=["one-namespace", "all-namespaces"],
)
def test_list_of_nothing_succeeds_and_says_where_it_searched(
    server: Server, options: list[str], path: str, sentence: str
) -> None:
    server.answers[path] = [(200, {"items": []})]
    assert call("list", *options) == (0, "", sentence)


def test_get_shows_the_run_and_what_the_losses_cost(server: Server) -> None:
    goodput = {"percent": 91, "lostSeconds": {"startup": 32.0, "lostWork": 0}}
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running", goodput=goodput))]
    code, output, _ = call("get", "digits")
    assert code == 0
    assert "goodput  91% (lost: startup 32 s)" in output


def test_get_and_list_show_the_workers_of_a_run_whose_number_of_them_changes(
    server: Server,
) -> None:
    sizes = [{"workers": 1, "seconds": 90.0}, {"workers": 2, "seconds": 30.0}]
    workers = {"wanted": 2, "ready": 2, "training": 1, "sizes": sizes}
    elastic, fixed = a_run("Running", workers=workers), a_run("Running")
    server.answers[f"{RUNS}/digits"] = [(200, elastic)]
    output = call("get", "digits")[1]
    assert "workers  1 of 2 train, 2 ready; trained 90s with 1, 30s with 2" in output
    waits = {"wanted": 2, "ready": 2, "training": 2, "standby": 1}
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running", workers=waits))]
    assert "workers  2 of 2 train, 2 ready, 1 standby" in call("get", "digits")[1]
    server.answers[RUNS] = [(200, {"items": [elastic, fixed]})]
    lines = call("list")[1].splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["WORKERS", "1/2"]
    server.answers[RUNS] = [(200, {"items": [fixed]})]
    assert "WORKERS" not in call("list")[1]


def test_get_shows_the_newest_losses(server: Server) -> None:
    loss = {
        "number": 1,
        "time": "2026-11-26T03:00:00Z",
        "attempt": 1,
        "reason": "NodeLost",
        "pods": ["digits-1-worker-abcde"],
        "node": "spot-1",
        "zone": "zone-b",
        "capacity": "Spot",
        "signs": "its Lease is no longer renewed",
        "lostSteps": 2,
        "lostSeconds": 34.0,
        "action": "resumed from step 10, in attempt 1",
    }
    losses = [{**loss, "number": number} for number in range(1, 8)]
    disruptions = {"nodeLosses": 7, "history": losses}
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running", disruptions=disruptions))]
    code, output, _ = call("get", "digits")
    assert code == 0
    lines = [" ".join(line.split()) for line in output.splitlines() if line.startswith("loss")]
    assert lines[-1] == (
        "loss 7 2026-11-26T03:00:00Z NodeLost digits-1-worker-abcde on node spot-1 (Spot, zone-b): "
        "its Lease is no longer renewed; lost 2 steps and 34s; resumed from step 10, in attempt 1"
    )
    assert len(lines) == 5
    assert "history" not in output


def test_get_shows_on_which_capacity_the_workers_are_and_why(server: Server) -> None:
    message = "New workers go to on-demand nodes: 3 spot nodes were lost within 3600 s"
    capacity = {"type": "OnDemand", "message": message, "spot": 5, "onDemand": 3}
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running", capacity=capacity))]
    output = " ".join(call("get", "digits")[1].split())
    assert f"capacity 5 worker pods on spot nodes, 3 on on-demand nodes; {message}" in output


def test_get_shows_the_wait_for_data(server: Server) -> None:
    progress = {"step": 480, "dataWaitShare": 0.34, "dataWaitRank": 3}
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running", progress=progress))]
    assert "waiting for data  34% of the time in steps (rank 3)" in call("get", "digits")[1]


def test_get_shows_the_slowest_rank_and_the_memory(server: Server) -> None:
    progress = {
        "step": 480,
        "communicationWaitShare": 0.66,
        "communicationWaitRank": 0,
        "slowestRank": {"rank": 3, "node": "b", "ownSeconds": 0.36, "medianSeconds": 0.2},
        "memory": {"rank": 1, "node": "a", "usedBytes": 2**30, "limitBytes": 2**31},
        "warnings": ["rank 3 on node b is slow"],
    }
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running", progress=progress))]
    output = call("get", "digits")[1]
    for line in (
        "waiting for ranks  66% of the time in steps (rank 0)",
        "slowest rank       3 on node b: 0.36 s of its own in a step, the others' median is 0.2 s",
        "memory             1.0 GiB of 2.0 GiB (rank 1 on node a)",
        "warning            rank 3 on node b is slow",
    ):
        assert line in output


def test_watch_says_a_warning_once(server: Server) -> None:
    def warned(phase: str, seconds: str) -> tuple[int, dict[str, Any]]:
        said = f"rank 3 on node b is slow: a step takes it {seconds} s"
        return 200, a_run(phase, progress={"step": 1, "warnings": [said]})

    server.answers[f"{RUNS}/digits"] = [
        warned("Running", "0.36"),
        warned("Running", "0.41"),
        warned("Succeeded", "0.41"),
    ]
    code, output, _ = call("watch", "digits")
    assert code == 0
    assert output.count("rank 3 on node b is slow: a step takes it 0.36 s") == 1
    assert output.count("rank 3 on node b is slow") == 1


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_list_and_get_give_objects_as_kubectl_does(
    server: Server, output: str, read: Callable[[str], Any]
) -> None:
    run = a_run("Running")
    stored = {**run, "metadata": {**run["metadata"], "managedFields": [{"manager": "kubectl"}]}}
    server.answers[RUNS] = [(200, {"items": [stored]})]
    server.answers[f"{RUNS}/digits"] = [(200, stored)]
    code, text, _ = call("list", "-o", output)
    assert (code, read(text)) == (0, {"apiVersion": "v1", "kind": "List", "items": [run]})
    code, text, _ = call("get", "digits", "-o", output)
    assert (code, read(text)) == (0, run)


@pytest.mark.parametrize(("command", "wanted"), [("suspend", True), ("resume", False)])
def test_suspend_and_resume_change_that_field_alone(
    server: Server, command: str, wanted: bool
) -> None:
    server.answers[f"{RUNS}/digits"] = [
        (200, {**a_run("Running"), "spec": {"suspend": not wanted}})
    ]
    code, output, errors = call(command, "digits")
    assert (code, errors) == (0, "")
    assert output.startswith("digits is asked to ")
    patch = {"spec": {"suspend": wanted}}
    assert server.applied == [("application/merge-patch+json", patch)]


@pytest.mark.parametrize(
    ("command", "phase", "spec", "sentence"),
    [
        ("suspend", "Succeeded", {}, "has ended (Succeeded); `retry` begins a run with its spec"),
        ("resume", "Failed", {"suspend": True}, "has ended (Failed); `retry` begins a run with"),
        ("suspend", "Running", {"suspend": True}, "is asked to suspend already"),
        ("resume", "Running", {}, "is not suspended"),
    ],
)
def test_what_suspend_and_resume_would_not_change_is_said_and_left(
    server: Server, command: str, phase: str, spec: dict[str, Any], sentence: str
) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, {**a_run(phase), "spec": spec})]
    code, _, errors = call(command, "digits")
    assert (code, server.applied) == (1, [])
    assert errors.startswith(f"TrainingRun digits in namespace team-a {sentence}")


def test_of_a_run_with_a_checkpoint_retry_is_said_to_continue(server: Server) -> None:
    run = {**a_run("Failed", checkpoint={"step": 7, "uri": "s3://runs/x"}), "spec": {}}
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    assert call("suspend", "digits")[2].endswith("`retry` begins a run from its checkpoint\n")


def test_resume_says_that_a_budget_keeps_the_run_suspended(server: Server) -> None:
    found = {"type": "Suspended", "status": "True", "reason": "BudgetSpent"}
    run = {**a_run("Suspended", conditions=[found]), "spec": {"budget": {"amount": 1}}}
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    code, _, errors = call("resume", "digits")
    assert (code, server.applied) == (1, [])
    assert errors.endswith("is suspended by its budget; raise spec.budget.amount to continue\n")


def test_delete_says_where_the_checkpoints_are_kept(server: Server) -> None:
    run = {**a_run("Running"), "spec": {"storage": {"uri": "s3://runs/ml/"}}}
    run["metadata"] = {**run["metadata"], "uid": "feedbeef-0000"}
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    code, output, _ = call("delete", "digits")
    assert (code, server.deleted) == (0, [f"{RUNS}/digits"])
    assert output == "digits deleted from namespace team-a; s3://runs/ml/digits-feedbeef is kept\n"


def test_delete_of_a_run_that_has_no_folder_yet_says_that_it_is_deleted(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, {**a_run("Pending"), "spec": {}})]
    assert call("delete", "digits") == (0, "digits deleted from namespace team-a\n", "")


@pytest.mark.usefixtures("server")
def test_render_with_a_namespace_prints_it_where_the_file_names_none(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    run = {"apiVersion": "trainingrun.dev/v1alpha1", "kind": "TrainingRun"}
    spec = {"training": {"function": "a.b:c"}, "storage": {"uri": "s3://b/r"}}
    for own, printed in ({}, "team-b"), ({"namespace": "mine"}, "mine"):
        file.write_text(yaml.safe_dump({**run, "metadata": {"name": "x", **own}, "spec": spec}))
        code, output, _ = call("render", str(file), "--namespace", "team-b")
        assert code == 0
        found = {each["metadata"]["namespace"] for each in yaml.safe_load_all(output)}
        assert found == {printed}


@pytest.mark.parametrize("command", ["get", "logs", "watch", "retry"])
def test_a_wrong_name_is_said_in_a_sentence(server: Server, command: str) -> None:
    code, output, errors = call(command, "digts")
    assert (code, output) == (1, "")
    assert errors.startswith("TrainingRun digts in namespace team-a: not found")


NO_NAMES = ["", ".", "..", "a/b", "a..b", "Digits", "digits-", "digits\n", "x" * 254]


@pytest.fixture
def asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all requests."""
    paths: list[str] = []
    answer = server.answer

    def noting(path: str) -> tuple[int, Any]:
        paths.append(path)
        return answer(path)

    monkeypatch.setattr(server, "answer", noting)
    return paths


@pytest.mark.parametrize("name", NO_NAMES, ids=repr)
@pytest.mark.parametrize(
    "command", ["get", "watch", "top", "events", "logs", "suspend", "delete", "retry", "export"]
)
def test_a_name_that_no_run_can_have_is_refused_before_any_request(
    asked: list[str], command: str, name: str
) -> None:
    code, output, errors = call(command, name)
    assert (code, output, asked) == (1, "", [])
    assert errors == (
        f"{name!r} is no name of a TrainingRun; write at most 253 lower-case letters, digits, "
        "hyphens and dots, with a letter or digit first, last and beside each dot\n"
    )


@pytest.mark.parametrize("name", NO_NAMES, ids=repr)
def test_no_call_of_the_client_asks_for_a_name_that_no_object_can_have(
    asked: list[str], name: str
) -> None:
    kube, object_of_it = Kube(None, None), {"metadata": {"name": name}}
    pod = {"metadata": {"name": name, "labels": {}}}
    variable = {
        "name": "RAY_AUTH_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}},
    }
    for request in (
        lambda: kube.run(name),
        lambda: kube.set_suspend(name, True),
        lambda: kube.delete(name),
        lambda: kube.create(object_of_it),
        lambda: kube.apply(object_of_it),
        lambda: kube.apply_config_map(object_of_it),
        lambda: kube.log_tail(name, "ray-head", 1, 1, False),
        lambda: list(kube.pod_log(pod)),
        lambda: kube.ray_token({"spec": {"containers": [{"env": [variable]}]}}),
    ):
        with pytest.raises(RunError, match=r" is no name of an? \w+; write at most 253 "):
            request()
    assert asked == []


@pytest.mark.parametrize("name", [".", "..", "a/b", "a.b", "Team", "x" * 64], ids=repr)
def test_a_name_that_no_namespace_can_have_is_refused_before_any_request(
    asked: list[str], name: str
) -> None:
    said = (
        f"{name!r} is no name of a namespace; write at most 63 lower-case letters, digits and "
        "hyphens, with a letter or digit first and last"
    )
    assert call("list", "--namespace", name) == (1, "", f"{said}\n")
    map_of_it = {"metadata": {"name": "x", "namespace": name}}
    kube = Kube(None, None)
    for request in (
        lambda: kube.within(name),
        lambda: kube.apply_config_map(map_of_it),
        lambda: defaults.of_cluster(kube, print)(map_of_it),
    ):
        with pytest.raises(RunError) as refused:
            request()
        assert str(refused.value) == said
    assert asked == []


def test_a_name_with_dots_is_one(server: Server) -> None:
    server.answers[f"{RUNS}/of.a-former.version"] = [(200, a_run("Running"))]
    assert call("get", "of.a-former.version")[0] == 0


def test_the_api_servers_own_message_is_printed(server: Server) -> None:
    server.answers[RUNS] = [(403, {"message": "trainingruns is forbidden: User u cannot list"})]
    assert call("list") == (1, "", "TrainingRuns: trainingruns is forbidden: User u cannot list\n")


def test_watch_ends_with_0_when_the_run_has_succeeded(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [
        (200, a_run("Running", progress={"step": 1, "totalSteps": 2})),
        (200, a_run("Running", progress={"step": 1, "totalSteps": 2})),
        (200, a_run("Recovering", disruptions={"preemptions": 1})),
        (200, a_run("Succeeded")),
    ]
    code, output, errors = call("watch", "digits")
    assert (code, errors) == (0, "")
    assert [line.split(" ", 1)[1] for line in output.splitlines()] == [
        "digits: Running · step 1/2 · attempt 1",
        "digits: Recovering · attempt 1 · preemptions 1",
        "digits: Succeeded · attempt 1",
    ]


def test_watch_says_once_what_a_run_waits_for(server: Server) -> None:
    said = "Pod digits-head cannot be scheduled: no node has enough cpu free"
    conditions = [
        {"type": "Ready", "status": "False", "reason": "Starting", "message": "Pods start"},
        {"type": "Stalled", "status": "True", "reason": "Unschedulable", "message": said},
    ]
    failed = {**conditions[1], "type": "Stalled", "reason": "Failed", "message": "no more restarts"}
    server.answers[f"{RUNS}/digits"] = [
        *[(200, a_run("Starting", conditions=conditions))] * 2,
        (200, a_run("Succeeded", conditions=[failed])),
    ]
    code, output, errors = call("watch", "digits")
    assert (code, errors) == (0, "")
    assert [line.split(" ", 1)[1] for line in output.splitlines()] == [
        "digits: Starting · attempt 1",
        f"digits: {said}",
        "digits: Succeeded · attempt 1",
    ]


def test_watch_says_once_that_no_operator_has_seen_the_run_and_what_asks_why(
    server: Server,
) -> None:
    new, old = a_run("Pending"), a_run("Pending")
    new["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
    new["status"], old["status"] = {}, {}
    server.answers[f"{RUNS}/digits"] = [(200, new), (200, old), (200, old), (200, a_run("Failed"))]
    output = call("watch", "digits")[1]
    assert [line.split(" ", 1)[1] for line in output.splitlines()] == [
        "digits: Pending",
        "digits: no operator has seen it yet; `trainingrun doctor --namespace team-a` says what is "
        "wrong",
        "digits: Failed · attempt 1",
    ]
    server.answers[f"{RUNS}/digits"] = [(200, new), (200, a_run("Succeeded"))]
    assert "no operator" not in call("watch", "digits")[1]


def test_watch_says_why_its_budget_has_suspended_a_run_and_nothing_where_somebody_has(
    server: Server,
) -> None:
    def suspended(reason: str) -> tuple[int, dict[str, Any]]:
        found = {"type": "Suspended", "status": "True", "reason": reason, "message": "No pod left"}
        return 200, a_run("Suspended", conditions=[found])

    for reason, lines in (("BudgetSpent", ["digits: No pod left"]), ("Suspended", [])):
        server.answers[f"{RUNS}/digits"] = [suspended(reason), (200, a_run("Succeeded"))]
        output = call("watch", "digits")[1]
        assert [line.split(" ", 1)[1] for line in output.splitlines()] == [
            "digits: Suspended · attempt 1",
            *lines,
            "digits: Succeeded · attempt 1",
        ]


def silent(hours: int, phase: str = "Running") -> dict[str, Any]:
    """A run whose training last reported so long ago."""
    reported = datetime.now(UTC) - timedelta(hours=hours, minutes=1)
    progress = {
        "step": 9, "stepSeconds": 0.5, "secondsLeft": 7200, "warnings": ["rank 3 is slow"],
        "updateTime": reported.isoformat(),
    }  # fmt: skip
    return a_run(phase, progress=progress)


def test_watch_says_once_that_a_run_is_silent(server: Server) -> None:
    later = [(200, silent(hours)) for hours in (2, 2, 3)]
    server.answers[f"{RUNS}/digits"] = [*later, (200, a_run("Succeeded"))]
    output = call("watch", "digits")[1]
    assert [line.split(" ", 1)[1] for line in output.splitlines()] == [
        "digits: Running · step 9 · last report 2h ago · attempt 1",
        "digits: Succeeded · attempt 1",
    ]


def test_get_and_list_say_since_when_a_run_is_silent_and_give_no_old_estimate(
    server: Server,
) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, silent(2))]
    output = call("get", "digits")[1]
    assert "last report  2h ago" in output
    assert "time left" not in output
    assert "is slow" not in output
    server.answers[RUNS] = [(200, {"items": [silent(2), a_run("Queued")]})]
    heads, first, _ = (line.split() for line in call("list")[1].splitlines())
    assert (heads, first[-2:]) == ([*HEADS, "REPORTED"], ["2h", "ago"])
    server.answers[RUNS] = [(200, {"items": [silent(2, "Queued")]})]
    assert call("list")[1].splitlines()[0].split() == HEADS


def test_watch_ends_with_1_and_the_reason_when_the_run_has_failed(server: Server) -> None:
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "MaxRestarts",
        "message": "ValueError: no such metric",
    }
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Failed", conditions=[condition]))]
    code, _, errors = call("watch", "digits")
    assert code == 1
    assert errors == "digits failed: MaxRestarts: ValueError: no such metric\n"


def test_watch_ends_with_1_when_a_finalizer_holds_the_deleted_run(server: Server) -> None:
    run = a_run("Deleting")
    run["metadata"]["finalizers"] = ["example.org/hook"]
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    code, _, errors = call("watch", "digits")
    assert code == 1
    assert "digits is deleted; finalizers hold the object: example.org/hook" in errors


def test_watch_ends_with_0_when_a_finalizer_holds_a_run_that_has_succeeded(server: Server) -> None:
    run = a_run("Succeeded")
    run["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x"]}
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running")), (200, run)]
    code, _, errors = call("watch", "digits")
    assert (code, errors) == (0, "")
    run["status"]["phase"] = "Failed"
    assert call("watch", "digits")[2] == "digits failed: no reason is given\n"


def test_watch_says_so_when_the_run_is_deleted(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running")), (404, {"message": "gone"})]
    code, _, errors = call("watch", "digits")
    assert (code, errors) == (1, "digits was deleted\n")


@pytest.mark.parametrize("phase", ["Succeeded", "Running"])
def test_watch_does_not_take_a_later_run_of_the_same_name_for_the_one_it_follows(
    server: Server, phase: str
) -> None:
    def of(uid: str, phase: str) -> tuple[int, dict[str, Any]]:
        run = a_run(phase)
        return 200, {**run, "metadata": {**run["metadata"], "uid": uid}}

    later = [of("b", phase), of("b", "Succeeded")]
    server.answers[f"{RUNS}/digits"] = [of("a", "Running"), of("a", "Running"), *later]
    code, output, errors = call("watch", "digits")
    assert (code, errors) == (1, "digits was deleted\n")
    assert len(output.splitlines()) == 1


BUSY = [(429, "too many requests"), (500, "etcd has no leader"), (502, ""), (503, ""), (504, "")]


def test_an_api_server_that_is_busy_or_restarts_does_not_end_watch(server: Server) -> None:
    away = [(status, {"message": message}) for status, message in BUSY]
    server.answers[f"{RUNS}/digits"] = [
        (200, a_run("Running")),
        *away,
        (502, b"<html>Bad Gateway</html>"),
        (200, a_run("Succeeded")),
    ]
    code, output, errors = call("watch", "digits")
    assert (code, errors) == (0, "")
    assert output.endswith("digits: Succeeded · attempt 1\n")


def test_an_api_server_that_stays_busy_ends_watch_after_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert following.AWAY_S == 60
    monkeypatch.setattr(following, "AWAY_S", 0.2)
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running")), (503, {"message": "overloaded"})]
    began = time.monotonic()
    code, _, errors = call("watch", "digits")
    assert (code, errors) == (1, "TrainingRun digits in namespace team-a: overloaded\n")
    assert time.monotonic() - began > 0.2


def test_what_the_api_server_refuses_ends_watch_at_once(server: Server) -> None:
    refused = (422, {"message": "the object is not valid"})
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running")), refused, (200, a_run("Succeeded"))]
    code, _, errors = call("watch", "digits")
    assert code == 1
    assert errors == "TrainingRun digits in namespace team-a: the object is not valid\n"


@pytest.mark.parametrize(
    ("error", "soon"),
    [
        (UnreachableError("no route"), True),
        *((RefusedError("", status), True) for status, _ in BUSY),
        (RefusedError("", 404), True),
        (RefusedError("", 422), False),
        (RunError("of a bucket"), False),
        (ValueError("of what was read"), False),
    ],
    ids=repr,
)
def test_it_is_known_of_which_errors_a_later_call_may_succeed(error: Exception, soon: bool) -> None:
    assert following.passes(error) is soon


def test_events_of_a_former_run_of_the_name_are_left_out(server: Server) -> None:
    def event(message: str, **involved: str) -> dict[str, Any]:
        return {
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "involvedObject": {"kind": "TrainingRun", "name": "digits", **involved},
            "message": message,
        }

    run = a_run("Running")
    run["metadata"]["uid"] = "1a2b"
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    found = [event("of-this", uid="1a2b"), event("of-former", uid="9f9f"), event("of-any")]
    server.answers["/api/v1/namespaces/team-a/events"] = [(200, {"items": found})]
    code, output, errors = call("events", "digits")
    assert (code, errors) == (0, "")
    assert sorted(line.split()[-1] for line in output.splitlines()[1:]) == ["of-any", "of-this"]
    server.answers[f"{RUNS}/digits"] = [(404, {"message": "gone"})]
    assert call("events", "digits")[2].startswith("TrainingRun digits in namespace team-a: not fo")


def test_events_are_in_the_order_in_which_they_were_last_seen(server: Server) -> None:
    found = [
        {
            "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "involvedObject": {"kind": "TrainingRun", "name": "digits"},
            "lastTimestamp": f"2026-01-01T00:00:0{second}Z",
            "message": f"at-{second}",
        }
        for second in (3, 1, 2)
    ]
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running"))]
    server.answers["/api/v1/namespaces/team-a/events"] = [(200, {"items": found})]
    lines = call("events", "digits")[1].splitlines()[1:]
    assert [line.split()[-1] for line in lines] == ["at-1", "at-2", "at-3"]
    assert [each.message for each in Client().get("digits").events()] == ["at-1", "at-2", "at-3"]


def test_a_cluster_that_does_not_answer_is_named_as_such(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "dead"
    # Port 1 is privileged: nothing listens there.
    config.write_text((tmp_path / "kubeconfig").read_text().replace(f":{server.port}", ":1"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    code, _, errors = call("list")
    assert code == 1
    assert errors.startswith("the cluster does not answer: ")


def test_a_cluster_whose_tls_ends_at_once_does_not_answer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a load balancer without a backend, or one that speaks no TLS."""
    config = tmp_path / "tls"
    said = (tmp_path / "kubeconfig").read_text().replace("http://", "https://")
    config.write_text(said)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    with pytest.raises(UnreachableError, match="the cluster does not answer: SSLError "):
        Kube(None, None).runs(everywhere=False)


def test_without_a_kubeconfig_the_sentence_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    code, _, errors = call("list")
    assert code == 1
    assert errors.startswith("no cluster is configured")
    assert "KUBECONFIG" in errors


def test_a_context_that_is_named_needs_no_current_one(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    config = yaml.safe_load(file.read_text())
    other = {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "team-b"}}
    config["contexts"].append(other)
    del config["current-context"]
    server.answers[RUNS] = [(200, {"items": [a_run("Running")]})]
    for current in ({}, {"current-context": "nowhere"}, {"current-context": "other"}):
        file.write_text(yaml.safe_dump({**config, **current}))
        code, output, _ = call("list", "--context", "here")
        assert (code, output.splitlines()[1].split()[0]) == (0, "digits")
    assert Kube(None, None).namespace == "team-b"


def test_without_a_current_context_one_is_asked_for(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace("current-context", "former-context"))
    code, output, errors = call("list")
    assert (code, output) == (1, "")
    assert "Expected key current-context in " in errors
    assert errors.endswith("); set KUBECONFIG, or name a --context\n")
    code, _, errors = call("list", "--context", "elsewhere")
    assert (code, "Expected object with name elsewhere in " in errors) == (1, True)


@pytest.mark.parametrize(
    "text",
    [
        b"users: [{name: u, user: {token: secret",
        b"users:\n\t- token: secret",
        b"token: secret: secret",
        b"[1, 2]",
        b"7",
        b"secret",
        b"\xff\xfe\xfa",
        b"",
        b"{}",
        b"contexts: 1",
        b"contexts: [1]",
        b"current-context: a\ncontexts: [{name: a, context: 5}]",
        b"contexts: [{name: a}, {nam: b}]",
        b"current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, "
        b"cluster: {server: 5}}]",
        b"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: "
        b"[{name: c, cluster: {server: s}}]\nusers: [{name: u, token: secret}]",
    ],
    ids=repr,
)
@pytest.mark.parametrize("options", [[], ["--context", "a"]], ids=["current", "named"])
def test_a_kubeconfig_that_cannot_be_read_is_one_sentence_without_what_is_in_it(
    server: Server, tmp_path: Path, text: bytes, options: list[str]
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(text)
    code, output, errors = call("list", *options)
    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert str(file) in errors
    assert "KUBECONFIG" in errors
    assert "secret" not in errors


def test_in_a_pod_without_a_kubeconfig_it_uses_the_pods_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, content in (("token", "t"), ("ca.crt", "c"), ("namespace", "team-b\n")):
        (tmp_path / file).write_text(content)
    module = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{module}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{module}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    code, _, errors = call("list")
    assert (code, errors[:24]) == (1, "no cluster is configured")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = Kube(None, None)
    assert (found.namespace, found.url) == ("team-b", "https://10.0.0.1:443")
    assert Configuration.get_default_copy().host != found.url, "which is of other clients"
    with pytest.raises(RunError, match="no cluster is configured"):
        Kube("elsewhere", None)


HOSTILE = (
    "\x1b]0;title\x07\x1b]52;c;Y2xpcA==\x1b\\\x1b[2J\x9b31mred\x1b[0m [/x] [bold]b[/bold] \x1bc"
    "two\nlines\r over\x08 \u202eevil\u202c \u2066x\u2069 \u200ey\x00\x7f\u0085\u2028end"
)
HARMLESS = "red [/x] [bold]b[/bold] two lines over evil x y end"


def hostile_run(phase: str) -> dict[str, Any]:
    return a_run(
        phase,
        progress={"step": 1, "metrics": {"loss": HOSTILE, HOSTILE: 1}},
        attempts=[{"number": 1, "outcome": "Failed", "reason": "Error", "message": HOSTILE}],
        conditions=[
            {"type": "Failed", "status": "True", "reason": "Failed", "message": HOSTILE},
        ],
        checkpoint={"step": 1, "uri": HOSTILE},
        result={"checkpointUri": HOSTILE},
    )


@pytest.mark.parametrize(
    "command",
    [
        ["get", "digits"],
        ["list"],
        ["watch", "digits"],
        ["get", "digits", "-o", "yaml"],
        ["list", "-o", "json"],
    ],
    ids=" ".join,
)
def test_what_training_code_says_never_reaches_the_terminal_as_control_or_markup(
    server: Server, command: list[str]
) -> None:
    run = hostile_run("Failed")
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    server.answers[RUNS] = [(200, {"items": [run]})]
    result = CliRunner().invoke(app, command, color=True)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    said = result.output
    assert result.exit_code == (1 if command[0] == "watch" else 0)
    assert "digits" in said
    for character in "\x1b\x9b\x07\x08\x00\x7f\x85\r\u202e\u202c\u2066\u2069\u200e\u2028":
        assert character not in said
    if command == ["get", "digits"]:
        assert f"Failed Error {HARMLESS}" in said
        assert f"  {HARMLESS}" in said  # a metric's name
    if command == ["watch", "digits"]:
        assert f"digits failed: Failed: {HARMLESS}" in said


def test_an_api_servers_message_is_no_markup_either(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(500, {"message": HOSTILE})]
    result = CliRunner().invoke(app, ["get", "digits"], color=True)
    assert result.exit_code == 1
    assert "\x1b" not in result.output
    assert "[/x] [bold]b[/bold]" in result.output


def test_a_log_keeps_its_lines_and_tabs_and_loses_what_a_terminal_obeys() -> None:
    assert plain_lines("a\tb\r\n\x1b[31mc\x1b]0;t\x07\x1b[K\n") == "a\tb\r\nc\n"
    # A sequence that was cut in two is still none.
    assert plain_lines("a\x1b") + plain_lines("[31mb") == "a[31mb"


@pytest.mark.parametrize(
    "mark", ["\u201c", "\u201d", "\u2018", "\u2019", "\u201b", "\u2026", "\u0159"]
)
def test_a_character_that_was_read_as_latin_1_hides_nothing_of_its_neighbors(mark: str) -> None:
    read = mark.encode().decode("latin-1")
    first = read[0]
    lines = ["step 1", f"saved {read}best{read} model", "step 3", "ValueError: loss is NaN"]
    shown = plain_lines("\n".join(lines)).split("\n")
    assert [shown[0], *shown[2:]] == [lines[0], *lines[2:]]
    for text in (shown[1], plain(lines[1])):
        assert text.startswith(f"saved {first}")
        assert text.endswith(" model")
        assert "best" in text
        assert not any("\x80" <= character <= "\x9f" for character in text)


@pytest.mark.parametrize(
    "begin", ["\x1b]0;", "\x1bP", "\x1b_", "\x9d", "\x90", "\x98", "\x1b[", "\x9b"]
)
def test_a_sequence_without_an_end_hides_no_other_line(begin: str) -> None:
    shown = plain_lines(f"a\nb {begin}5\nthe error\r\nafter it\x07\x9c")
    assert shown.startswith("a\nb ")
    assert shown.endswith("\nthe error\r\nafter it")


@pytest.fixture
def run_yaml(tmp_path: Path) -> str:
    """A file with the run `digits`."""
    file = tmp_path / "run.yaml"
    manifest = {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "digits"},
        "spec": {
            "training": {"function": "examples.digits:train"},
            "storage": {"uri": "s3://runs/team-a"},
        },
    }
    file.write_text(yaml.safe_dump(manifest))
    return str(file)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_run_that_has_ended_is_not_submitted_again(
    server: Server, run_yaml: str, phase: str
) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run(phase))]
    assert call("submit", run_yaml) == (
        1,
        "",
        f"TrainingRun digits in namespace team-a has ended ({phase}); delete it, or choose another "
        "name\n",
    )
    assert server.applied == []


@pytest.mark.parametrize(
    "before",
    [
        pytest.param((404, {"message": "not found"}), id="new"),
        pytest.param((200, a_run("Running")), id="running"),
    ],
)
def test_submit_applies_a_run_and_takes_no_field_from_another_tool(
    server: Server, run_yaml: str, before: tuple[int, Any]
) -> None:
    server.answers[f"{RUNS}/digits"] = [before, (200, {}), (200, a_run("Succeeded"))]
    code, output, errors = call("submit", run_yaml)
    assert (code, errors) == (0, "")
    assert output.splitlines()[0] == "digits applied to namespace team-a"
    assert output.endswith("digits: Succeeded · attempt 1\n")
    (query,) = server.queries
    assert query["fieldValidation"] == "Strict"
    assert query.get("force", "false") == "false"


def test_a_field_that_another_tool_set_is_named_with_what_to_do(
    server: Server, run_yaml: str
) -> None:
    said = 'Apply failed with 1 conflict: conflict with "kubectl":\n- .spec.failures.maxRestarts'
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Running")), (409, {"message": said})]
    code, _, errors = call("submit", run_yaml)
    assert code == 1
    assert errors == (
        "TrainingRun digits in namespace team-a: Apply failed with 1 conflict: conflict with "
        '"kubectl": - .spec.failures.maxRestarts; change these fields with the tool that set them, '
        "or choose another name\n"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("command", ["get", "checkpoints list", "logs --namespace team-a"])
def test_the_shell_completes_the_names_of_runs(server: Server, command: str, shell: str) -> None:
    other = {"metadata": {"name": "other", "namespace": "team-a"}}
    server.answers[RUNS] = [(200, {"items": [a_run("Running"), other]})]
    typed = f"trainingrun {command} di"
    offered = completed(typed, shell)
    assert "digits" in offered
    assert "other" not in offered
    server.answers.clear()
    assert "digits" not in completed(typed, shell)


def test_no_name_is_completed_where_the_cluster_does_not_answer(
    server: Server, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes requests, and says nothing
        config = tmp_path / "kubeconfig"
        port = silent.getsockname()[1]
        config.write_text(config.read_text().replace(str(server.port), str(port)))
        began = time.monotonic()
        assert completed("trainingrun get di", "bash") == ""
        assert time.monotonic() - began < 15  # a request of other commands may take 30 s


def completed(typed: str, shell: str) -> str:
    """What a shell is told to offer after these words."""
    environment = {
        "_TRAININGRUN_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = CliRunner().invoke(app, [], prog_name="trainingrun", env=environment)
    return result.output.strip()
