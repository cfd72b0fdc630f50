"""What the API server answers, or a proxy in its place: known, unknown for now, or a sentence."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli_server import RUNS, Server, call, running_server
from support.hostile_objects import nested
from trainingrun import Client, RunError
from trainingrun.cli import trace_command
from trainingrun.client import defaults, following, installation, log_lines
from trainingrun.client.errors import (
    NotFoundError,
    NotServedError,
    RefusedError,
    RunTimeoutError,
)
from trainingrun.client.kube import Kube

RUN = f"{RUNS}/digits"
PODS = "/api/v1/namespaces/team-a/pods"
AWAY: tuple[int, Any] = (503, {"message": "etcd has no leader"})
HTML = b"<html>404 Not Found</html>"
NOT_SERVED = b"404 page not found\n"
"""As kube-apiserver 1.34 answers of a kind whose CRD is not installed; so does Traefik."""
NO_REASON = [
    pytest.param(b'{"error": {"code": 503}}', id="of a gateway"),
    pytest.param(b'{"kind": "Status"}', id="status"),
    pytest.param(b'{"message": null}', id="null"),
    pytest.param(b"[]", id="list"),
    pytest.param(nested(2000).encode(), id="deep"),
    pytest.param(HTML, id="html"),
    pytest.param(b"\xff", id="no text"),
    pytest.param(b"", id="nothing"),
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def a_run(phase: str = "Running") -> tuple[int, dict[str, Any]]:
    return 200, {
        "metadata": {"name": "digits", "namespace": "team-a", "uid": "12345678-9"},
        "spec": {"storage": {"uri": "file:///x"}},
        "status": {"phase": phase, "attempt": 1, "seen": {"rayCluster": "c1"}},
    }


@pytest.mark.parametrize("body", NO_REASON)
def test_an_outage_that_says_no_reason_is_waited_out(server: Server, body: bytes) -> None:
    server.answers[RUN] = [a_run(), a_run(), (503, body), a_run("Succeeded")]
    assert Client().get("digits").wait().phase == "Succeeded"


@pytest.mark.parametrize("body", NO_REASON)
def test_a_refusal_that_says_no_reason_is_that_of_its_status(server: Server, body: bytes) -> None:
    about = "TrainingRun digits in namespace team-a"
    for status, said in (
        (401, "401 Unauthorized; log in to the cluster again"),
        (403, "403 Forbidden"),
        (422, "422 Unprocessable Entity"),
    ):
        server.answers[RUN] = [(status, body)]
        assert call("get", "digits") == (1, "", f"{about}: {said}\n")


@pytest.mark.parametrize(
    ("path", "ask", "missing"),
    [
        (RUNS, lambda kube: kube.runs(everywhere=False), "items"),
        (RUN, lambda kube: kube.run("digits"), "metadata"),
        (PODS, lambda kube: kube.pods(a_run()[1]), "items"),
        (
            "/api/v1/namespaces/team-a/events",
            lambda kube: kube.events(a_run()[1]),
            "items",
        ),
        (
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            lambda kube: kube.may("get", "", "pods"),
            "status",
        ),
        (
            "/apis/apps/v1/deployments",
            lambda kube: installation.deployments(kube, installation.OPERATOR),
            "items",
        ),
    ],
    ids=["list", "get", "pods", "events", "rights", "deployments"],
)
def test_json_of_something_else_than_an_api_server_is_refused_in_a_sentence(
    server: Server, path: str, ask: Callable[[Kube], Any], missing: str
) -> None:
    for body in ({"login": "https://sso"}, {missing: "https://sso"}, {missing: None}):
        server.answers[path] = [(200, body)]
        with pytest.raises(RefusedError) as refused:
            ask(Kube(None, None))
        assert str(refused.value).endswith(
            f": the answer has no {missing}; does the address in the kubeconfig lead to the API "
            "server?"
        )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"message": 'trainingruns.trainingrun.dev "digits" not found'}, NotFoundError),
        (NOT_SERVED, NotServedError),
        (HTML, RefusedError),
        (b"", RefusedError),
        (b"404 page not found on this server", RefusedError),
        (b'{"message": "no Route matched"}', RefusedError),
        (b'{"kind": "Status", "message": "cluster c-1 not found"}', RefusedError),
    ],
    ids=str,
)
def test_only_an_api_server_says_that_there_is_none(
    server: Server, body: Any, kind: type[RunError]
) -> None:
    server.answers[RUN] = [(404, body)]
    with pytest.raises(RunError) as error:
        Kube(None, None).run("digits")
    assert type(error.value) is kind
    about = "TrainingRun digits in namespace team-a: "
    if kind is RefusedError:
        assert str(error.value).endswith(
            "; does the address in the kubeconfig lead to the API server?"
        )
    else:
        assert (
            str(error.value) == f"{about}not found; is the name right, and the operator installed?"
        )


@pytest.mark.parametrize("body", [HTML, NOT_SERVED], ids=str)
def test_a_proxy_that_does_not_find_its_api_server_deletes_no_run(
    server: Server, body: bytes
) -> None:
    lost = (404, body)
    server.answers[RUN] = [a_run(), lost, lost, a_run("Succeeded")]
    code, output, errors = call("watch", "digits")
    assert (code, errors, output.splitlines()[-1][9:]) == (0, "", "digits: Succeeded · attempt 1")


def test_whoever_follows_lines_is_not_ended_by_a_proxy(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "POLL_S", 0.05)
    log = (200, b"2026-01-01T00:00:04Z [driver] step 1\n")
    owner = {"kind": "RayCluster", "name": "x", "uid": "c1", "controller": True}
    owner["apiVersion"] = "ray.io/v1"
    labels = {"ray.io/node-type": "head"}
    metadata = {"name": "head", "uid": "h1", "labels": labels, "ownerReferences": [owner]}
    server.answers[PODS] = [(200, {"items": [{"metadata": metadata, "status": {}}]})]
    more = (200, log[1] + b"2026-01-01T00:00:05Z [driver] step 2\n")
    server.answers[f"{PODS}/head/log"] = [log, (404, HTML), more]
    server.answers[RUN] = [a_run(), (404, HTML), a_run(), a_run(), a_run(), a_run("Succeeded")]
    code, output, errors = call("logs", "digits", "--follow")
    assert (code, output, errors) == (0, "[driver] step 1\n[driver] step 2\n", "")


@pytest.fixture
def run_yaml(tmp_path: Path) -> str:
    """A file with the run `digits`."""
    file = tmp_path / "run.yaml"
    spec = {"training": {"function": "a.b:c"}, "storage": {"uri": "s3://runs/team-a"}}
    manifest = {"apiVersion": "trainingrun.dev/v1alpha1", "kind": "TrainingRun"}
    file.write_text(yaml.safe_dump({**manifest, "metadata": {"name": "digits"}, "spec": spec}))
    return str(file)


def test_submit_takes_no_answer_of_a_proxy_for_a_name_that_is_free(
    server: Server, run_yaml: str
) -> None:
    for body, said in ((HTML, "404 Not Found; does the"), (NOT_SERVED, "not found; is the name")):
        server.answers[RUN] = [(404, body), (200, {})]
        code, output, errors = call("submit", run_yaml)
        assert (code, output, server.applied) == (1, "", [])
        assert errors.startswith(f"TrainingRun digits in namespace team-a: {said} ")


def test_a_kind_that_is_not_served_sets_no_defaults_and_a_proxy_leaves_them_unknown(
    server: Server,
) -> None:
    path = "/apis/trainingrun.dev/v1alpha1/namespaces/team-a/trainingdefaults/default"
    server.answers[path] = [(404, NOT_SERVED)]
    said: list[str] = []
    assert defaults.of_namespace(Kube(None, None), "team-a", said.append) == []
    server.answers[path] = [(404, HTML)]
    with pytest.raises(RefusedError):
        defaults.of_namespace(Kube(None, None), "team-a", said.append)
    assert said == []


def test_of_a_kind_that_is_not_served_trace_has_no_objects(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    kube, path = Kube(None, None), "/apis/ray.io/v1/namespaces/team-a/rayjobs"
    server.answers[path] = [(404, NOT_SERVED)]
    assert trace_command._read("rayjobs", lambda: kube.get(path)) is None
    assert capsys.readouterr().err == ""
    server.answers[path] = [(404, HTML)]
    assert trace_command._read("rayjobs", lambda: kube.get(path)) is None
    assert capsys.readouterr().err.startswith(f"not read: rayjobs: {path}: 404 Not Found; does the")


def test_a_run_that_there_is_is_waited_for_where_the_api_server_is_away_at_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[RUN] = [a_run()]
    run = Client().get("digits")
    for timeout in (None, 60):
        server.answers[RUN] = [AWAY, AWAY, a_run("Succeeded")]
        assert run.wait(timeout).phase == "Succeeded"
    server.answers[RUN] = [AWAY]
    with pytest.raises(RunTimeoutError) as late:
        run.wait(timeout=0.1)
    assert str(late.value) == (
        "digits has not ended within 0.1 s, as far as is known without the API server: nothing is "
        "known of it"
    )
    monkeypatch.setattr(following, "AWAY_S", 0.1)
    with pytest.raises(RefusedError, match="etcd has no leader"):
        run.wait()
    server.answers[RUN] = [(404, {"message": "gone"})]
    with pytest.raises(NotFoundError, match="digits in namespace team-a: not found"):
        run.wait(timeout=60)


def test_submit_follows_what_it_has_applied_also_where_the_api_server_is_away_then(
    server: Server, run_yaml: str
) -> None:
    server.answers[RUN] = [(404, {"message": "new"}), (200, {}), AWAY, AWAY, a_run("Succeeded")]
    code, output, errors = call("submit", run_yaml)
    assert (code, errors) == (0, "")
    assert output.splitlines()[-1].endswith("digits: Succeeded · attempt 1")


def test_whoever_names_a_run_hears_at_once_that_the_api_server_is_away(server: Server) -> None:
    server.answers[RUN] = [AWAY, a_run("Succeeded")]
    said = "TrainingRun digits in namespace team-a: etcd has no leader\n"
    assert call("watch", "digits") == (1, "", said)
