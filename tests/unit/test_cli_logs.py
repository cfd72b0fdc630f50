"""`logs` of pods, against an HTTP server that answers as an API server would."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, Server, call, running_server
from support.report_runs import failed_run
from trainingrun.api.errors import RunError
from trainingrun.cli.log_command import folded
from trainingrun.client.errors import bucket_access
from trainingrun.client.log_lines import Printed, together
from trainingrun.rendering import names
from trainingrun_runtime.store import storage_errors
from trainingrun_runtime.store.bucket import Bucket

PODS = "/api/v1/namespaces/team-a/pods"


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


def test_following_goes_on_until_the_run_has_ended(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run()), (200, a_run()), (200, a_run("Succeeded"))]
    server.answers[f"{PODS}/w1/log"] = [
        log((4, "[rank 1] epoch 1")),
        log((4, "[rank 1] epoch 1"), (8, "[rank 1] epoch 2")),
    ]
    code, output, errors = call("logs", "digits", "--rank", "1", "--follow")
    assert (code, output, errors) == (0, "[rank 1] epoch 1\n[rank 1] epoch 2\n", "")


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


def test_a_run_that_has_not_begun_has_printed_nothing(server: Server) -> None:
    server.answers[f"{RUNS}/digits"] = [(200, a_run("Queued", attempt=0))]
    sentence = "digits has not begun to train, so it has printed nothing yet\n"
    assert call("logs", "digits") == (1, "", sentence)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--driver", "--rank", "1"], "--driver and --rank exclude each other"),
        (["--grep", "("], "--grep ( is no regular expression"),
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
