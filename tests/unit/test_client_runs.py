"""What a run of a cluster says in Python: typed, or one sentence. The server is a stub."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from support.cli_server import RUNS, Server, running_server
from trainingrun import Client, RunError, RunFailedError
from trainingrun.client import RunTimeoutError, following
from trainingrun.client.client import _read
from trainingrun.client.defaults import no_defaults
from trainingrun.client.notebook import Page
from trainingrun.client.submitting import name_of, pack


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def answer(server: Server, *conditions: dict[str, str], **status: Any) -> None:
    run = {
        "metadata": {"name": "digits", "namespace": "team-a", "uid": "12345678-9"},
        "spec": {"storage": {"uri": "file:///x"}},
        "status": {**status, "conditions": [{"status": "True", **each} for each in conditions]},
    }
    server.answers.setdefault(f"{RUNS}/digits", []).append((200, run))


def test_a_run_that_goes_on_is_no_error_but_a_timeout(server: Server) -> None:
    answer(server, phase="Running", progress={"step": 3, "totalSteps": 9})
    run = Client().get("digits")
    with pytest.raises(RunTimeoutError) as late:
        run.wait(timeout=0)
    assert str(late.value) == "digits has not ended within 0 s, and goes on: Running · step 3/9"
    assert isinstance(late.value, TimeoutError)
    assert isinstance(late.value, RunError)


def test_a_later_run_of_the_same_name_is_not_what_is_waited_for(server: Server) -> None:
    answer(server, phase="Running")
    answer(server, phase="Running")
    answer(server, phase="Succeeded")
    run = Client().get("digits")  # which takes the first answer
    server.answers[f"{RUNS}/digits"][-1][1]["metadata"]["uid"] = "87654321-9"
    with pytest.raises(RunError) as gone:
        run.wait()
    assert str(gone.value) == "digits was deleted"
    assert run.wait().phase == "Succeeded", "which another call follows from its own first look"


def test_an_api_server_that_restarts_does_not_end_what_waits_for_a_run(server: Server) -> None:
    answer(server, phase="Running")
    answer(server, phase="Running")
    for status in (500, 503, 429):
        server.answers[f"{RUNS}/digits"].append((status, {"message": "etcd has no leader"}))
    answer(server, phase="Succeeded")
    assert Client().get("digits").wait().phase == "Succeeded"


def test_only_a_run_that_has_failed_is_said_to_have(server: Server) -> None:
    why = {"type": "Failed", "reason": "MaxRestarts", "message": "ValueError: x"}
    answer(server, phase="Running")
    answer(server, why, phase="Failed")
    run = Client().get("digits")
    with pytest.raises(RunFailedError, match=r"^digits failed: MaxRestarts: ValueError: x$"):
        run.wait()
    for other in ((401, {"message": "Unauthorized"}), (403, {"message": "no"}), (404, {})):
        server.answers[f"{RUNS}/digits"] = [other]
        with pytest.raises(RunError) as unknown:
            run.wait()
        assert not isinstance(unknown.value, RunFailedError | RunTimeoutError)


def test_a_run_that_has_ended_and_is_held_by_a_finalizer_has_the_end_that_it_had(
    server: Server,
) -> None:
    answer(server, phase="Succeeded")
    metadata = server.answers[f"{RUNS}/digits"][0][1]["metadata"]
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.org/hook"]}
    run = Client().get("digits")
    assert run.wait().phase == "Succeeded"
    server.answers[f"{RUNS}/digits"][0][1]["status"]["phase"] = "Failed"
    with pytest.raises(RunFailedError):
        run.wait()
    server.answers[f"{RUNS}/digits"][0][1]["status"]["phase"] = "Running"
    with pytest.raises(
        RunError, match=r"is deleted; finalizers hold the object: example\.org/hook"
    ):
        run.wait()


def test_whoever_waits_with_a_timeout_waits_for_the_api_server_until_then(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "AWAY_S", -1.0)
    answer(server, phase="Running", progress={"step": 3, "totalSteps": 9})
    run, answers = Client().get("digits"), server.answers[f"{RUNS}/digits"]
    running, away = answers[0], (503, {"message": "etcd has no leader"})
    answers[:] = [running, away]
    with pytest.raises(RunError, match="etcd has no leader"):
        run.wait()
    answers[:] = [running, away, away]
    answer(server, phase="Succeeded")
    assert run.wait(timeout=60).phase == "Succeeded"
    answers[:] = [running, away]
    with pytest.raises(RunTimeoutError) as late:
        run.wait(timeout=0.2)
    assert str(late.value) == (
        "digits has not ended within 0.2 s, as far as is known without the API server: Running · "
        "step 3/9"
    )


@pytest.mark.parametrize(
    ("given", "config"),
    [
        ({}, {"lr": 1, "warmup": 2}),
        ({"config": {"lr": 0.5}}, {"lr": 0.5, "warmup": 2}),
        ({"training": {"config": {"lr": 0.5}}}, {"lr": 0.5, "warmup": 2}),
        ({"training": {"config": {"lr": 0.5}}, "config": {"warmup": 3}}, {"lr": 0.5, "warmup": 3}),
        ({"training": {"config": {"lr": 0.5}}, "config": {"lr": None}}, {"warmup": 2}),
        ({"training": {"config": {"lr": None}}, "config": {"warmup": 3}}, {"warmup": 3}),
        ({"training": {"config": None}}, None),
        ({"training": None, "config": {"lr": 0.5}}, {"lr": 0.5, "warmup": 2}),
        ({"config": {}}, {"lr": 1, "warmup": 2}),
    ],
    ids=str,
)
def test_a_retry_takes_changes_of_the_config_in_either_way_and_both(
    server: Server, given: dict[str, Any], config: dict[str, Any] | None
) -> None:
    former = {**WRITTEN, "metadata": {"name": "digits", "namespace": "team-a", "uid": "12345678"}}
    server.answers[f"{RUNS}/digits"] = [(200, former)]
    server.answers[RUNS] = [(200, {"items": [former]})]
    server.answers[f"POST {RUNS}"] = [(201, {})]
    Client().get("digits").retry(**given)
    (created,) = server.created
    assert created["spec"]["training"].get("config") == config
    assert created["spec"]["training"]["function"] == "a.b:c"


def test_a_retry_without_any_training_is_refused_in_a_sentence(server: Server) -> None:
    former = {**WRITTEN, "metadata": {"name": "digits", "namespace": "team-a", "uid": "12345678"}}
    server.answers[f"{RUNS}/digits"] = [(200, former)]
    server.answers[RUNS] = [(200, {"items": [former]})]
    with pytest.raises(RunError, match=r"^spec\.training is missing"):
        Client().get("digits").retry(training=None)
    assert server.created == []


def test_a_status_of_another_version_is_named_without_its_values(server: Server) -> None:
    answer(server, {"type": "Failed", "reason": "secret", "message": "secret"}, phase="Failed")
    with pytest.raises(RunError) as unknown:
        _ = Client().get("digits").status
    assert str(unknown.value) == (
        "status.conditions.0.lastTransitionTime is not as this version knows it (Field required); "
        "install the trainingrun of the operator's version, or read run.object"
    )


def test_a_phase_of_another_version_is_said_in_a_sentence(server: Server) -> None:
    answer(server, phase="Hibernating")
    run = Client().get("digits")
    with pytest.raises(RunError) as unknown:
        _ = run.phase
    assert str(unknown.value).startswith(
        "status.phase is not as this version knows it (Hibernating is none of Pending, "
    )
    assert str(unknown.value).endswith(
        "; install the trainingrun of the operator's version, or read run.object"
    )


def test_a_notebook_shows_a_run_that_is_gone_with_a_sentence_and_no_markup(server: Server) -> None:
    waits = {"type": "Waiting", "reason": "Pods", "message": "<script>no node</script>"}
    answer(server, waits, phase="Starting", progress={"percent": 7})
    run = Client().get("digits")
    shown = run._repr_html_()
    assert "<div>&lt;script&gt;no node&lt;/script&gt;</div>" in shown
    assert '<progress max="100" value="7"' in shown
    server.answers[f"{RUNS}/digits"] = [(404, {"message": "gone"})]
    assert "TrainingRun digits in namespace team-a: not found" in run._repr_html_()


def test_a_run_that_has_no_folder_yet_says_so(server: Server) -> None:
    answer(server, phase="Pending")
    server.answers[f"{RUNS}/digits"][0][1]["spec"] = {}
    with pytest.raises(RunError, match=r"^digits has no storage\.uri until it begins"):
        _ = Client().get("digits").folder


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({"grep": "("}, r"^grep is '\(', which is no regular expression \(missing \)"),
        ({"tail": -1}, r"^tail is -1; give a number of lines, or 0 for none$"),
    ],
)
def test_lines_that_cannot_be_chosen_are_refused_in_a_sentence(
    server: Server, selection: dict[str, Any], sentence: str
) -> None:
    answer(server, phase="Running")
    with pytest.raises(RunError, match=sentence):
        list(Client().get("digits").logs(**selection))


def test_a_page_that_cannot_be_saved_is_named_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError) as refused:
        Page("<p>").save(tmp_path / "absent/run.html")
    assert str(refused.value) == (
        f"{tmp_path}/absent/run.html cannot be written: No such file or directory; name a file in "
        "a folder that can"
    )


@pytest.mark.parametrize("workers", ["2", [2], 2.5])
def test_a_number_of_workers_that_is_none_is_refused_by_the_schema(
    server: Server, workers: Any
) -> None:
    with pytest.raises(RunError, match=r"workers\.count"):
        Client().submit("a.b:c", workers=workers, storage="s3://runs/x")
    assert server.applied == []


def test_what_no_run_is_made_of_is_refused(server: Server) -> None:
    with pytest.raises(RunError, match=r"cannot be trained; pass a function, module:function of"):
        Client().submit(io.BytesIO())  # type: ignore[arg-type]
    assert server.applied == []


WRITTEN = {
    "apiVersion": "trainingrun.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "digits"},
    "spec": {
        "training": {"function": "a.b:c", "config": {"lr": 1, "warmup": 2}},
        "workers": {"count": 2, "perPod": 2},
        "storage": {"uri": "s3://runs/x", "endpoint": "http://x"},
    },
}


def submitted(server: Server, train: Any, **given: Any) -> dict[str, Any]:
    """The spec that `submit` applies."""
    name = given.get("name", "digits")
    server.answers[f"{RUNS}/{name}"] = [(404, {}), (200, {})]
    Client().submit(train, **given)
    spec: dict[str, Any] = server.applied[-1][1]["spec"]
    return spec


def test_none_in_what_is_given_removes_and_the_rest_stays(server: Server) -> None:
    spec = submitted(
        server,
        WRITTEN,
        config={"warmup": None},
        workers={"perPod": None, "accelerator": {"kind": "nvidia"}},
        storage={"endpoint": None},
    )
    assert spec == {
        "training": {"function": "a.b:c", "config": {"lr": 1}},
        "workers": {"count": 2, "accelerator": {"kind": "nvidia"}},
        "storage": {"uri": "s3://runs/x"},
    }
    assert submitted(server, WRITTEN) == WRITTEN["spec"], "an argument that is None changes nothing"


def test_a_function_gets_the_none_that_its_config_has(server: Server) -> None:
    config = {"warmup": None, "lr": 1}
    spec = submitted(server, "a.b:c", config=config, storage="s3://runs/x", name="digits")
    assert spec["training"]["config"] == config


def test_a_file_is_judged_with_what_is_given(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    bare = {**WRITTEN, "spec": {"training": {"function": "a.b:c"}}}
    file.write_text(yaml.safe_dump(bare))
    assert submitted(server, file, storage="s3://runs/x")["storage"] == {"uri": "s3://runs/x"}
    with pytest.raises(RunError) as wrong:
        Client(local=True).submit(file, workers=0)
    assert str(wrong.value) == f"{file}:5: spec.workers.count is 0; write at least 1"


def test_code_of_a_local_run_is_never_rewritten_while_another_run_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = SimpleNamespace(start=lambda: None, own=tmp_path)
    monkeypatch.setattr("trainingrun.client.client.LocalProcess", lambda *_arguments: begun)
    code, root = tmp_path / "mine", tmp_path / "runs"
    code.mkdir()
    (code / "train.py").write_text("def main(config): ...")
    packed = pack(code)
    file = root / "code" / name_of(packed)
    file.parent.mkdir(parents=True)
    file.write_bytes(packed[:100])  # its disk was full

    def submit() -> None:
        Client(local=True, folder=root).submit("train:main", name="one", code=code)

    with file.open("rb") as read:
        submit()
        assert read.read() == packed[:100]
    assert file.read_bytes() == packed
    written = file.stat()
    submit()
    assert file.stat() == written
    assert list(file.parent.iterdir()) == [file]


def test_the_file_of_a_run_is_no_code_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def train(config): pass")
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(WRITTEN))
    packed = _read(file, tmp_path, no_defaults, lambda manifest: manifest)[2]
    assert packed == pack(tmp_path, file)
