"""`logs` of pods, against an HTTP server that answers as an API server would."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, Server, call, running_server
from support.deadlines import ends_within
from support.report_runs import failed_run
from trainingrun.api.errors import RunError
from trainingrun.cli.log_command import folded
from trainingrun.client import kube, log_lines
from trainingrun.client.errors import bucket_access
from trainingrun.client.log_lines import Printed, together, unix
from trainingrun.rendering import names
from trainingrun_protocol.contract import CLAIM_FOLDERS_ENV
from trainingrun_runtime.store import kept_output, storage_errors
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.kept_output import Source
from trainingrun_runtime.store.lease import Lease

PODS = "/api/v1/namespaces/team-a/pods"
LOST = (500, {"message": "dial tcp 10.0.0.7:10250: connect: no route to host"})
"""What the API server answers of a pod whose kubelet it cannot reach."""
SAID = "the log of pod w1: dial tcp 10.0.0.7:10250: connect: no route to host.\n"
ELSEWHERE = "What w1 printed is not shown; it is in s3://runs/demo/digits-1a2b3c4d"


def a_run(phase: str = "Running", attempt: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": "digits", "namespace": "team-a", "uid": "1a2b3c4d-0"},
        "spec": {"storage": {"uri": "s3://runs/demo"}},
        "status": {"phase": phase, "attempt": attempt, "seen": {"rayCluster": "c1"}},
    }


def a_pod(name: str, role: str, cluster: str = "c1") -> dict[str, Any]:
    owner = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "name": "digits-1-x",
        "uid": cluster,
        "controller": True,
    }
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {names.ROLE_LABEL: role},
            "ownerReferences": [owner],
        },
        "status": {"phase": "Running"},
    }


def log(*lines: tuple[int, str]) -> tuple[int, bytes]:
    text = "".join(f"2026-01-01T00:00:{second:02d}.123456789Z {line}\n" for second, line in lines)
    return 200, text.encode()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        found.answers[f"{RUNS}/digits"] = [(200, a_run())]
        pods = [a_pod("head", names.HEAD), a_pod("w0", names.WORKER), a_pod("w1", names.WORKER)]
        found.answers[PODS] = [(200, {"items": pods})]
        found.answers[f"{PODS}/head/log"] = [
            log((1, "Ray runtime started."), (2, "[driver] attempt 1 begins"))
        ]
        found.answers[f"{PODS}/w0/log"] = [
            log((3, "[rank 0] epoch 1"), (5, "[pid 7] imported"), (6, "[rank 0] [rank 9] mine"))
        ]
        found.answers[f"{PODS}/w1/log"] = [log((4, "[rank 1] epoch 1"), (7, "[rank 1] done"))]
        yield found


def test_what_ranks_and_driver_print_is_read_from_the_pods(server: Server) -> None:
    code, output, errors = call("logs", "digits")
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        "[driver] attempt 1 begins",
        "[ranks 0-1] epoch 1",
        "[rank 0] [rank 9] mine",
        "[rank 1] done",
    ]
    assert call("logs", "digits", "--rank", "1")[1] == "[rank 1] epoch 1\n[rank 1] done\n"
    assert call("logs", "digits", "--driver")[1] == "[driver] attempt 1 begins\n"
    assert call("logs", "digits", "--tail", "1", "--grep", "epoch")[1] == "[ranks 0-1] epoch 1\n"


@pytest.mark.usefixtures("server")
def test_no_pod_s_log_waits_for_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lost node each is answered after half a minute."""
    all_three, read = threading.Barrier(3, timeout=10), kube.Kube.pod_log

    def together_with_the_others(self: kube.Kube, pod: Any, **how: Any) -> Iterator[str]:
        all_three.wait()
        return read(self, pod, **how)

    monkeypatch.setattr(kube.Kube, "pod_log", together_with_the_others)
    code, output, _ = call("logs", "digits")
    assert (code, len(output.splitlines())) == (0, 4)


def test_following_goes_on_until_the_run_has_ended(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run()), (200, a_run()), (200, a_run("Succeeded"))]
    server.answers[f"{PODS}/w1/log"] = [
        log((4, "[rank 1] epoch 1")),
        log((4, "[rank 1] epoch 1"), (8, "[rank 1] epoch 2")),
    ]
    code, output, errors = call("logs", "digits", "--rank", "1", "--follow")
    assert (code, output, errors) == (0, "[rank 1] epoch 1\n[rank 1] epoch 2\n", "")


def test_following_without_the_lines_so_far_begins_with_the_next_one(server: Server) -> None:
    assert call("logs", "digits", "--tail", "0") == (0, "", "")
    server.answers[f"{RUNS}/digits"] = [(200, a_run()), (200, a_run()), (200, a_run("Succeeded"))]
    server.answers[f"{PODS}/w1/log"] = [
        log((4, "[rank 1] epoch 1")),
        log((4, "[rank 1] epoch 1"), (8, "[rank 1] epoch 2")),
    ]
    found = call("logs", "digits", "--rank", "1", "--tail", "0", "--follow")
    assert found == (0, "[rank 1] epoch 2\n", "")


def test_a_refused_right_is_said_and_no_other_log_is_shown(server: Server) -> None:
    refusal = 'pods "w1" is forbidden: User "eve" cannot get resource "pods/log"'
    server.answers[f"{PODS}/w1/log"] = [(403, {"message": refusal})]
    for options in ([], ["--follow"]):
        code, output, errors = call("logs", "digits", *options)
        assert (code, output) == (1, "")
        assert errors == (
            f"the log of pod w1: {refusal}; ask for the verb get of pods/log in namespace team-a\n"
        )


def test_a_pod_that_has_not_started_or_is_gone_leaves_the_others(server: Server) -> None:
    waits = 'container "ray-worker" in pod "w1" is waiting to start: ContainerCreating'
    server.answers[f"{PODS}/w1/log"] = [(400, {"message": waits})]
    server.answers[f"{PODS}/w0/log"] = [(404, {"message": "gone"})]
    code, output, errors = call("logs", "digits")
    assert (code, output) == (0, "[driver] attempt 1 begins\n")
    assert errors == f"the log of pod w1: {waits}.\n"


@pytest.fixture
def no_bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's bucket is not read here."""
    run = a_run()
    run["spec"]["storage"]["endpoint"] = "http://127.0.0.1:1"
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)


@pytest.fixture
def claim(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The run's folder on a claim that this machine has, with nothing in it."""
    (tmp_path / "nfs" / "lost+found").mkdir(parents=True)
    monkeypatch.setenv(CLAIM_FOLDERS_ENV, f"runs={tmp_path / 'nfs'}")
    server.answers[f"{RUNS}/digits"] = [(200, on_a_claim())]
    return Bucket.open("pvc://runs/demo/digits-1a2b3c4d")


def on_a_claim(phase: str = "Running") -> dict[str, Any]:
    run = a_run(phase)
    run["spec"]["storage"]["uri"] = "pvc://runs/demo"
    return run


def prints(folder: Bucket, began: float, text: str, rank: int = 1) -> None:
    Lease.take(folder, 1, "pod", began)
    content = kept_output.written(began, text).encode()
    folder.put(kept_output.key(Source(1, 1, rank), began), content)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_lines, "POLL_S", 0.05)
    with ends_within(60):
        yield


def ends_once_read(server: Server, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the run succeed once the last answer to a path is the next one."""
    before = server.answer

    def answer(asked: str) -> tuple[int, Any]:
        code, run = before(asked)
        if asked == f"{RUNS}/digits" and len(server.answers[path]) == 1:
            run = {**run, "status": {**run["status"], "phase": "Succeeded"}}
        return code, run

    monkeypatch.setattr(server, "answer", answer)


def no_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kube, "_TIMEOUT_S", 1.0)
    server.answers[f"{PODS}/w1/log"] = [(200, threading.Event())]
    return "the log of pod w1: the cluster does not answer: "


def an_error(server: Server, _: pytest.MonkeyPatch) -> str:
    server.answers[f"{PODS}/w1/log"] = [LOST]
    return SAID


@pytest.mark.parametrize("loss", [an_error, no_answer])
@pytest.mark.usefixtures("no_bucket")
def test_the_log_of_a_node_that_is_lost_is_said_and_the_others_are_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, loss: Any
) -> None:
    said = loss(server, monkeypatch)
    code, output, errors = call("logs", "digits")
    assert code == 0
    assert output.splitlines() == [
        "[driver] attempt 1 begins",
        "[rank 0] epoch 1",
        "[rank 0] [rank 9] mine",
    ]
    assert errors.startswith(said)
    assert [line[: len(ELSEWHERE)] for line in errors.splitlines()[1:]] == [ELSEWHERE]


def test_the_lines_of_a_node_that_is_lost_are_those_of_the_folder(
    server: Server, claim: Bucket
) -> None:
    prints(claim, unix("2026-01-01T00:00:04Z"), "epoch 1")
    server.answers[f"{PODS}/w1/log"] = [LOST]
    code, output, errors = call("logs", "digits", "--grep", "epoch")
    assert (code, output, errors) == (0, "[ranks 0-1] epoch 1\n", SAID)


@pytest.mark.parametrize("phase", ["Running", "Failed"])
@pytest.mark.usefixtures("no_bucket", "quick")
def test_following_goes_on_without_a_node_that_is_lost_until_its_log_can_be_read(
    server: Server, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    lost = a_pod("w1", names.WORKER)
    lost["status"]["phase"] = phase
    server.answers[PODS] = [(200, {"items": [a_pod("head", names.HEAD), lost]})]
    lines = [(4, "[rank 1] epoch 1"), (7, "[rank 1] epoch 2")]
    log_of = f"{PODS}/w1/log"
    server.answers[log_of] = [LOST, LOST, LOST, log(*lines), log(*lines, (8, "[rank 1] done"))]
    ends_once_read(server, log_of, monkeypatch)
    code, output, errors = call("logs", "digits", "--follow", "--tail", "1")
    assert code == 0
    assert output.splitlines() == [
        "[driver] attempt 1 begins",
        "[rank 1] epoch 2",
        "[rank 1] done",
    ]
    assert errors.startswith(SAID)
    assert [line[: len(ELSEWHERE)] for line in errors.splitlines()[1:]] == [ELSEWHERE]


@pytest.mark.usefixtures("quick")
def test_of_a_log_that_can_be_read_again_no_line_follows_that_the_folder_had(
    server: Server, claim: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints(claim, unix("2026-01-01T00:00:04Z"), "epoch 1")
    lines = log((4, "[rank 1] epoch 1"), (7, "[rank 1] done"))
    server.answers[f"{PODS}/w1/log"] = [LOST, lines, lines]
    ends_once_read(server, f"{PODS}/w1/log", monkeypatch)
    code, output, errors = call("logs", "digits", "--rank", "1", "--follow")
    assert (code, output, errors) == (0, "[rank 1] epoch 1\n[rank 1] done\n", SAID)


@pytest.mark.parametrize(
    ("failures", "said"), [(1, ""), (3, SAID)], ids=["connection closed", "node lost"]
)
@pytest.mark.usefixtures("quick")
def test_a_log_that_is_followed_is_opened_again_and_its_loss_said_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, failures: int, said: str
) -> None:
    log_of = f"{PODS}/w1/log"
    begins, goes_on = (4, "[rank 1] epoch 1"), (8, "[rank 1] epoch 2")
    server.answers[log_of] = [log(begins), *failures * [LOST], *2 * [log(begins, goes_on)]]
    ends_once_read(server, log_of, monkeypatch)
    code, output, errors = call("logs", "digits", "--rank", "1", "--follow")
    assert (code, output, errors) == (0, "[rank 1] epoch 1\n[rank 1] epoch 2\n", said)


@pytest.mark.usefixtures("quick")
def test_a_log_is_opened_again_from_its_last_line_on_by_the_clock_of_its_node(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this machine's clock says, and the kubelet says itself in the log."""
    log_of, asked, ask = f"{PODS}/w1/log", [], kube.Kube._answer

    def answer(self: kube.Kube, method: str, path: str, query: Any, *rest: Any) -> Any:
        if path == log_of:
            asked.append({key: query[key] for key in query if key.startswith("since")})
        return ask(self, method, path, query, *rest)

    monkeypatch.setattr(kube.Kube, "_answer", answer)
    code, begins = log((4, "[rank 1] epoch 1"))
    same_second = b"2026-01-01T00:00:04.9Z [rank 1] epoch 2\n"
    said = b"unable to retrieve container logs\n"
    server.answers[log_of] = [(code, begins + said), LOST, *2 * [(code, begins + same_second)]]
    ends_once_read(server, log_of, monkeypatch)
    found = call("logs", "digits", "--rank", "1", "--since", "10m", "--follow")
    assert found == (0, "[rank 1] epoch 1\n[rank 1] epoch 2\n", "")
    last_line = {"sinceTime": "2026-01-01T00:00:04.123456789Z"}
    assert asked[:3] == [{"sinceSeconds": "600"}, last_line, last_line]


def lines(*stamped: str) -> tuple[int, bytes]:
    return 200, "".join(f"2026-01-01T{each}\n" for each in stamped).encode()


SET_BACK = ["12:59:59.5Z [rank 1] 1", "13:00:00.5Z [rank 1] 2", "12:00:01.5Z [rank 1] 3"]
END_OF_SUMMER_TIME = [
    "02:59:58.5+02:00 [rank 1] 1",
    "02:59:59.5+02:00 [rank 1] 2",
    "02:00:00.5+01:00 [rank 1] 3",
]
ONE_MICROSECOND = [f"12:00:00.50000000{number}Z [rank 1] {number}" for number in (1, 2, 3)]
ALIKE = [f"12:00:0{min(number, 2)}Z [rank 1] {number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("all_of_it", "read"),
    [
        pytest.param(all_of_it, read, id=f"{name}, {read} before")
        for name, all_of_it, before in (
            ("clock set back", SET_BACK, (1, 3)),
            ("end of summer time", END_OF_SUMMER_TIME, (2, 3)),
            ("one microsecond", ONE_MICROSECOND, (1, 2)),
            ("alike", ALIKE, (1, 3)),
        )
        for read in before
    ],
)
@pytest.mark.usefixtures("quick")
def test_each_line_of_a_log_is_shown_once_whatever_its_time(
    server: Server, monkeypatch: pytest.MonkeyPatch, all_of_it: list[str], read: int
) -> None:
    log_of, told = f"{PODS}/w1/log", all_of_it[:read]
    # What follows begins in the second of the last line that was read before.
    server.answers[log_of] = [lines(*told), lines(*all_of_it[read - 1 :])]
    ends_once_read(server, log_of, monkeypatch)
    code, output, errors = call("logs", "digits", "--rank", "1", "--follow")
    assert (code, errors) == (0, "")
    assert sorted(output.splitlines()) == ["[rank 1] 1", "[rank 1] 2", "[rank 1] 3"]


def rotated(server: Server) -> None:
    """Pod w1 has begun an hour before the first line that the API server has of it."""
    pods = server.answers[PODS][0][1]["items"]
    for pod in pods:
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        pod["status"]["containerStatuses"] = [{"name": "ray-worker", "state": running}]
    server.answers[f"{PODS}/w1/log"] = [lines("01:00:00.5Z [rank 1] epoch 9")]


def test_lines_that_the_kubelet_has_rotated_away_are_those_of_the_folder(
    server: Server, claim: Bucket
) -> None:
    prints(claim, unix("2026-01-01T00:00:04Z"), "epoch 1")
    rotated(server)
    found = ["[ranks 0-1] epoch 1", "[rank 0] [rank 9] mine", "[rank 1] epoch 9"]
    code, output, errors = call("logs", "digits")
    assert (code, errors, output.splitlines()[1:]) == (0, "", found)
    code, output, errors = call("logs", "digits", "--tail", "1", "--rank", "1")
    assert (code, errors, output) == (0, "", "[rank 1] epoch 9\n")


@pytest.mark.usefixtures("no_bucket")
def test_of_rotated_lines_that_cannot_be_read_it_is_said_where_they_are(server: Server) -> None:
    rotated(server)
    code, output, errors = call("logs", "digits", "--rank", "1")
    assert (code, output) == (0, "[rank 1] epoch 9\n")
    assert errors.startswith("What w1 (before its log was rotated) printed is not shown; it is in ")
    for enough in (["--tail", "1"], ["--since", "10m"]):
        found = call("logs", "digits", "--rank", "1", *enough)
        assert found == (0, "[rank 1] epoch 9\n", "")


@pytest.mark.parametrize("gone", [False, True], ids=["pods are there", "pods are gone"])
@pytest.mark.usefixtures("quick")
def test_following_an_attempt_ends_with_it_before_another_one_begins(
    server: Server, claim: Bucket, gone: bool
) -> None:
    prints(claim, unix("2026-01-01T00:00:04Z"), "epoch 1")
    running, over = on_a_claim(), on_a_claim("Recovering")
    running["status"]["attempts"] = [{"number": 1}]
    over["status"]["attempts"] = [{"number": 1, "endTime": "2026-01-01T00:00:09Z"}]
    server.answers[f"{RUNS}/digits"] = [(200, running), (200, running), (200, over)]
    if gone:
        server.answers[PODS] = [(200, {"items": []})]
    found = call("logs", "digits", "--rank", "1", "--attempt", "1", "--grep", "epoch", "--follow")
    assert found == (0, "[rank 1] epoch 1\n", "")


def test_no_log_is_of_a_pod_that_only_has_the_labels_of_the_runs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[PODS] = [(200, {"items": [a_pod("copy", names.HEAD, cluster="c0")]})]
    server.answers[f"{PODS}/copy/log"] = [log((1, "[driver] of another run"))]
    run = a_run()
    run["spec"]["storage"]["endpoint"] = "http://127.0.0.1:1"
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    code, output, errors = call("logs", "digits")
    assert (code, output) == (1, "")
    assert errors.startswith("no credentials for s3://runs/demo/digits")


def test_lines_that_former_pods_have_printed_are_said_to_be_in_the_folder(server: Server) -> None:
    run = a_run()
    run["spec"]["storage"]["endpoint"] = "http://127.0.0.1:1"
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    code, output, errors = call("logs", "digits", "--rank", "5")
    assert (code, output) == (0, "")
    assert errors.startswith("What former pods of digits printed is not shown; it is in s3://runs")
    assert errors.count("\n") == 1


def test_a_line_that_a_pod_and_the_folder_have_is_one() -> None:
    of_pods = [Printed(100.5, 0, "epoch 2"), Printed(110.2, 0, "epoch 2"), Printed(100.5, 1, "a")]
    of_folder = [
        Printed(50.0, 0, "epoch 1"),
        Printed(50.1, 1, "epoch 2"),
        Printed(100.3, 0, "epoch 2"),
        Printed(105.0, 0, "epoch 2"),
        Printed(110.0, 0, "epoch 2"),
        Printed(60.0, None, "of a former head"),
    ]
    found = together(of_pods, of_folder, 1000)
    assert sorted(found, key=lambda line: line.time) == [
        Printed(50.0, 0, "epoch 1"),
        Printed(50.1, 1, "epoch 2"),
        Printed(60.0, None, "of a former head"),
        Printed(100.5, 0, "epoch 2"),
        Printed(100.5, 1, "a"),
        Printed(105.0, 0, "epoch 2"),
        Printed(110.2, 0, "epoch 2"),
    ]
    assert [line.time for line in together(of_pods, of_folder, 1)] == [110.2, 100.5, 60.0]
    assert together(of_pods, of_folder, 0) == []


def test_a_run_that_has_not_begun_has_printed_nothing(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Queued", attempt=0))]
    sentence = "digits has not begun to train, so it has printed nothing yet\n"
    assert call("logs", "digits") == (1, "", sentence)


@pytest.mark.usefixtures("quick")
def test_who_follows_a_run_that_has_no_pods_yet_waits_for_them_without_its_claim(
    server: Server,
) -> None:
    """As it is queued: it has its attempt, and a laptop has no claim of the cluster."""
    queued, ended = (200, on_a_claim("Queued")), (200, on_a_claim("Succeeded"))
    server.answers[f"{RUNS}/digits"] = [*3 * [queued], *3 * [(200, on_a_claim())], ended]
    none: tuple[int, Any] = (200, {"items": []})
    busy = (503, {"message": "etcdserver: leader changed"})
    [pods] = server.answers[PODS]
    server.answers[PODS] = [none, busy, none, pods, busy, pods]
    code, output, errors = call("logs", "digits", "--rank", "1", "--follow")
    assert (code, output) == (0, "[rank 1] epoch 1\n[rank 1] done\n")
    assert errors.startswith(
        "digits is Queued: its pods are waited for, as its folder cannot be read here: claim runs "
    )
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("quick")
def test_who_follows_a_run_that_has_no_pods_waits_for_its_folder(
    server: Server, claim: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, on_a_claim("Starting"))]
    none: tuple[int, Any] = (200, {"items": []})
    server.answers[PODS] = [none, none, none]
    before = server.answer

    def answer(asked: str) -> tuple[int, Any]:
        if asked == PODS and len(server.answers[PODS]) == 1:
            prints(claim, 1_700_000_000, "epoch 1")
            server.answers[f"{RUNS}/digits"] = [(200, on_a_claim("Succeeded"))]
        return before(asked)

    monkeypatch.setattr(server, "answer", answer)
    code, output, errors = call("logs", "digits", "--follow")
    assert (code, output) == (0, "[rank 1] epoch 1\n")
    assert errors == "digits is Starting: nothing is printed yet.\n"


@pytest.mark.usefixtures("claim", "quick")
def test_a_run_that_ends_before_it_has_pods_has_printed_nothing(server: Server) -> None:
    queued, failed = (200, on_a_claim("Queued")), (200, on_a_claim("Failed"))
    server.answers[f"{RUNS}/digits"] = [queued, queued, failed]
    server.answers[PODS] = [(200, {"items": []})]
    code, output, errors = call("logs", "digits", "--follow")
    assert (code, output) == (1, "")
    assert errors.splitlines() == [
        "digits is Queued: nothing is printed yet.",
        "there is nothing in pvc://runs/demo/digits-1a2b3c4d yet: digits has not begun to train",
    ]


@pytest.mark.usefixtures("claim")
def test_of_pods_that_have_just_started_no_former_ones_are_told(server: Server) -> None:
    for pod in ("head", "w0", "w1"):
        server.answers[f"{PODS}/{pod}/log"] = [log((1, "Ray runtime started."))]
    assert call("logs", "digits") == (0, "", "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--driver", "--rank", "1"], "--driver and --rank exclude each other"),
        (["--grep", "("], "grep is '(', which is no regular expression"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    server: Server, options: list[str], said: str
) -> None:
    code, _, errors = call("logs", "digits", *options)
    assert code == 1
    assert errors.startswith(said)


def printed(*lines: tuple[float, int | None, str]) -> list[str]:
    return folded([Printed(*line) for line in lines])


def test_a_rank_that_the_run_does_not_have_is_an_error(server: Server) -> None:
    run = a_run()
    run["spec"]["workers"] = {"count": 2}
    server.answers[f"{RUNS}/digits"] = [(200, run)]
    code, _, errors = call("logs", "digits", "--rank", "7")
    assert code == 1
    assert "the run has 2 ranks, 0 to 1, so there is no rank 7" in errors
    assert call("logs", "digits", "--rank", "1")[0] == 0


def test_a_rank_that_has_printed_nothing_is_an_error_where_others_have(tmp_path: Path) -> None:
    folder = (tmp_path / "demo-1a2b3c4d").as_uri()
    failed_run(Bucket.open(folder))
    assert "[rank 2] reading shard 41 79" in call("logs", folder, "--rank", "2")[1]
    code, output, errors = call("logs", folder, "--rank", "7")
    assert (code, output) == (1, "")
    assert "rank 7 has printed nothing in attempt 3" in errors


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (storage_errors.CredentialsError, "credentials are those of this shell's environment"),
        (storage_errors.DeniedError, "credentials are those of this shell's environment"),
        (storage_errors.UnreachableError, "name another with --endpoint"),
        (storage_errors.StoreFullError, "name a Secret"),
    ],
)
def test_an_error_of_the_bucket_says_what_to_do_in_a_shell(error: type, said: str) -> None:
    with (
        pytest.raises(RunError, match=r"^no credentials were found; ") as raised,
        bucket_access(),
    ):
        raise error("no credentials were found; name a Secret")
    assert said in str(raised.value)


def test_equal_lines_are_one_where_each_rank_has_printed_them_about_then() -> None:
    assert printed((0, 0, "a"), (0, 1, "a"), (1, 2, "a"), (2, 5, "a"), (3, 0, "a")) == [
        "[ranks 0-2,5] a",
        "[rank 0] a",
    ]
    assert printed((0, 0, "a"), (0, 0, "a"), (1, 1, "a"), (1, 1, "a")) == 2 * ["[ranks 0-1] a"]
    assert printed((0, 0, "a"), (60, 1, "a")) == ["[rank 0] a", "[rank 1] a"]
    assert printed((0, None, "a"), (0, 0, "a")) == ["[driver] a", "[rank 0] a"]
