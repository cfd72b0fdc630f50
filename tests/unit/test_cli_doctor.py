"""What `doctor` says of rights, against an HTTP server that answers as an API server would."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli_server import Server, running_server
from trainingrun.api.v1alpha1 import API_VERSION, GROUP, KIND
from trainingrun.client import checks
from trainingrun.client.errors import RefusedError
from trainingrun.client.kube import Kube
from trainingrun.cluster.kuberay import crd_path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def rights(monkeypatch: pytest.MonkeyPatch, *denied: tuple[str, str]) -> tuple[str, str]:
    """Verdict and sentence where verbs on resources are denied."""
    monkeypatch.setattr(
        Kube, "may", lambda _self, verb, _group, resource: (verb, resource) not in denied
    )
    ((verdict, sentence),) = checks._rights(Kube(None, None))
    return verdict, sentence


@pytest.mark.usefixtures("server")
def test_who_only_looks_at_runs_has_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [(verb, "trainingruns") for verb in ("create", "patch", "delete")]
    verdict, sentence = rights(monkeypatch, *changes)
    assert verdict == "unknown"
    assert "may not in namespace team-a: create trainingruns (for submit, retry); " in sentence
    assert "ask for the ClusterRole edit" in sentence


@pytest.mark.usefixtures("server")
def test_each_command_that_lists_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = "list, ui, cost, export, checkpoints prune, retry without --name"
    verdict, sentence = rights(monkeypatch, ("list", "trainingruns"))
    assert (verdict, f"list trainingruns (for {commands})" in sentence) == ("unknown", True)
    assert ("list", GROUP, "trainingruns") in checks._RIGHTS


@pytest.mark.usefixtures("server")
def test_a_right_on_other_objects_is_said_and_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict, sentence = rights(monkeypatch, ("get", "secrets"))
    assert (verdict, sentence.endswith("but not: get secrets (for dashboard)")) == ("ok", True)
    assert rights(monkeypatch)[0] == "ok"


def test_whoever_may_not_read_crds_hears_whether_the_kind_is_served(server: Server) -> None:
    group = "/apis/trainingrun.dev/v1alpha1"
    server.answers[crd_path(API_VERSION, KIND)] = [(403, {"message": "not for eve"})]
    for answer, verdict, said in (
        ((404, b"404 page not found\n"), "wrong", "TrainingRun is not installed; install the"),
        ((200, {"resources": [{"kind": KIND}]}), "unknown", f"{API_VERSION} is served, its"),
    ):
        server.answers[group] = [answer]
        ((found, sentence),) = checks._crd(Kube(None, None))
        assert (found, sentence[: len(said)]) == (verdict, said)
    server.answers[group] = [(404, b"<html>")]
    with pytest.raises(RefusedError, match="does the address in the kubeconfig lead to the API"):
        list(checks._crd(Kube(None, None)))
