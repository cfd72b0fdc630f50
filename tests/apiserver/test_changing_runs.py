"""`trainingrun suspend`, `resume`, `delete` and `events` against a real API server."""

from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from support.apiserver import ApiServer
from support.operators import a_run
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cli.main import app

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls a command in the test's namespace; exit code, and all that it prints."""
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(apiserver.kubeconfig))

    def made(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*arguments, "-n", namespace])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.output

    return made


def test_a_run_is_suspended_resumed_and_deleted(
    apiserver: ApiServer, namespace: str, call: Call
) -> None:
    before = apiserver.create(a_run(namespace))["spec"]
    for command, wanted in (("suspend", True), ("resume", False)):
        code, said = call(command, "digits")
        assert (code, said.startswith("digits is asked to ")) == (0, True)
        found = apiserver.get(API_VERSION, KIND, "digits", namespace)
        assert found["spec"] == {**before, "suspend": wanted}

    for name, message in (("digits", "rank 1 was lost"), ("other", "of another run")):
        involved = {"kind": KIND, "name": name, "namespace": namespace}
        metadata = {"name": f"{name}.1", "namespace": namespace}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "reason": "WorkerLost"}
        apiserver.create({**event, "involvedObject": involved, "message": message, "count": 2})
    code, said = call("events", "digits")
    heads, *rows = said.splitlines()
    assert (code, heads.split()) == (0, ["AGE", "TYPE", "REASON", "COUNT", "MESSAGE"])
    assert [row.split()[-6:] for row in rows] == [["WorkerLost", "2", "rank", "1", "was", "lost"]]

    code, said = call("delete", "digits")
    folder = f"{before['storage']['uri']}/digits-{found['metadata']['uid'][:8]}"
    assert (code, said) == (0, f"digits deleted from namespace {namespace}; {folder} is kept\n")
    code, said = call("delete", "digits")
    assert code == 1
    assert said.startswith(f"TrainingRun digits in namespace {namespace}: not found;")
