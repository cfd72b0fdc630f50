"""`trainingrun retry` and `trainingrun export` against a real API server."""

import pytest
import yaml
from typer.testing import CliRunner

from support.apiserver import ApiServer
from support.operators import a_run
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cli.main import app


@pytest.fixture
def command(apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch):
    """Calls a command in the test's namespace; exit code, output and errors."""
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(apiserver.kubeconfig))

    def call(*options: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [*options, "-n", namespace])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout, result.stderr

    return call


def test_a_run_that_was_stored_with_all_defaults_is_created_again(
    apiserver: ApiServer, namespace: str, command
) -> None:
    former = apiserver.create(a_run(namespace, suspend=True))
    checkpoint = {"uri": "s3://runs/tests/digits-1/checkpoints/x", "step": 40, "time": "t"}
    former["status"] = {"checkpoint": checkpoint}
    apiserver.replace(former, "status")
    code, output, errors = command("retry", "digits", "--set", "workers.count=3")
    assert (code, errors) == (0, "")
    assert output.startswith("digits-retry-1 created; it begins from the newest intact checkpoint")
    made = apiserver.get(API_VERSION, KIND, "digits-retry-1", namespace)
    folder = f"{former['spec']['storage']['uri']}/digits-{former['metadata']['uid'][:8]}"
    storage = {**former["spec"]["storage"], "restoreFrom": {"uri": folder}}
    workers = {**former["spec"]["workers"], "count": 3}
    changed = {"storage": storage, "workers": workers, "suspend": False}
    assert made["spec"] == {**former["spec"], **changed}
    assert made["status"] == {"observedGeneration": -1}

    code, output, _ = command("retry", "digits", "--dry-run")
    assert code == 0
    assert yaml.safe_load(output)["metadata"]["name"] == "digits-retry-2"
    code, _, errors = command("retry", "digits", "--name", "digits-retry-1")
    assert code == 1
    assert errors.startswith(f"TrainingRun digits-retry-1 in namespace {namespace}: ")
    assert "already exists" in errors


def test_a_run_that_is_exported_and_deleted_goes_on_from_its_folder_once_it_is_applied(
    apiserver: ApiServer, namespace: str, command
) -> None:
    former = apiserver.create(a_run(namespace))
    checkpoint = {"uri": "s3://runs/tests/digits-1/checkpoints/x", "step": 40, "time": "t"}
    former["status"] = {"phase": "Running", "checkpoint": checkpoint}
    apiserver.replace(former, "status")
    code, output, _ = command("export")
    assert code == 0
    command("delete", "digits")
    made = apiserver.create(yaml.safe_load(output))
    folder = f"{former['spec']['storage']['uri']}/digits-{former['metadata']['uid'][:8]}"
    storage = {**former["spec"]["storage"], "restoreFrom": {"uri": folder}}
    assert made["spec"] == {**former["spec"], "storage": storage}
    assert made["metadata"]["uid"] != former["metadata"]["uid"]
