"""Which rights the commands about a run's folder need, and what a page has without the folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli_server import RUNS, Server, call, running_server

DENIED = (403, {"message": "trainingruns is forbidden: User u cannot list"})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def answer(server: Server, **spec: Any) -> None:
    metadata = {"name": "digits", "namespace": "team-a", "uid": "feedbeef-0000"}
    status = {"phase": "Failed", "progress": {"step": 1234, "totalSteps": 9000}}
    run = {"metadata": metadata, "spec": spec, "status": status}
    server.answers[f"{RUNS}/digits"] = [(200, run)]


OF_CHECKPOINTS = [f"checkpoints {command}" for command in ("list", "verify", "download")]


@pytest.mark.parametrize("command", ["metrics", "stacks", "trace", *OF_CHECKPOINTS])
def test_a_command_about_one_run_needs_no_list_of_the_others(server: Server, command: str) -> None:
    answer(server, storage={"uri": "file:///runs"})
    server.answers[RUNS] = [DENIED]
    code, _, errors = call(*command.split(), "digits")
    assert (code, errors) == (
        1,
        "storage.uri is file:///runs, a folder of the pods that this machine does not have\n",
    )


def test_nothing_is_pruned_where_it_is_not_known_what_other_runs_need(server: Server) -> None:
    answer(server, storage={"uri": "s3://runs/a"})
    server.answers[RUNS] = [DENIED]
    code, output, errors = call("checkpoints", "prune", "digits", "--yes")
    assert (code, output) == (1, "")
    assert errors == "TrainingRuns: trainingruns is forbidden: User u cannot list\n"


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        pytest.param(
            {"storage": {"uri": "file:///runs"}},
            "storage.uri is file:///runs, a folder of the pods that this machine does not have",
            id="a folder of the pods",
        ),
        pytest.param({}, "digits has no storage.uri until it begins", id="no folder yet"),
    ],
)
def test_a_run_whose_folder_is_not_known_here_has_the_page_of_its_status(
    server: Server, tmp_path: Path, spec: dict[str, Any], note: str
) -> None:
    answer(server, **spec)
    server.answers[RUNS] = [DENIED]
    page = tmp_path / "page.html"
    assert call("report", "digits", "--html", "--to", str(page)) == (0, f"{page} written\n", "")
    text = page.read_text()
    assert note in text
    assert "1,234" in text
