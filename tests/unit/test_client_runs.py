"""What a run of a cluster says in Python: typed, or one sentence. The server is a stub."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, Server, running_server
from trainingrun import Client, RunError
from trainingrun.client import RunTimeoutError


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


def test_a_status_of_another_version_is_named_without_its_values(server: Server) -> None:
    answer(server, {"type": "Failed", "reason": "secret", "message": "secret"}, phase="Failed")
    with pytest.raises(RunError) as unknown:
        _ = Client().get("digits").status
    assert str(unknown.value) == (
        "status.conditions.0.lastTransitionTime is not as this version knows it (Field required); "
        "install the trainingrun of the operator's version, or read run.object"
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


def test_what_no_run_is_made_of_is_refused(server: Server) -> None:
    with pytest.raises(RunError, match=r"cannot be trained; pass a function, module:function of"):
        Client().submit(io.BytesIO())  # type: ignore[arg-type]
    assert server.applied == []
