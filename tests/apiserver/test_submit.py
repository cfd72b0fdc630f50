"""`trainingrun submit` against a real API server."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from support import installed_wheel
from support.apiserver import ApiServer
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cli.main import app

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "script.yaml"


def test_a_file_with_a_script_in_a_config_map_is_submitted_as_it_is(
    apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(apiserver.kubeconfig))
    for _ in range(2):  # the second time nothing changes
        result = CliRunner().invoke(app, ["submit", str(SAMPLE), "--no-watch", "-n", namespace])
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == (
            f"ConfigMap digits-script applied\nscript applied to namespace {namespace}\n"
        )
    script = apiserver.get("v1", "ConfigMap", "digits-script", namespace)["data"]["train.py"]
    assert script.startswith("import json\n")
    run = apiserver.get(API_VERSION, KIND, "script", namespace)
    assert run["spec"]["training"]["script"]["configMap"] == "digits-script"


def test_the_wheel_alone_submits(apiserver: ApiServer, namespace: str, tmp_path: Path) -> None:
    wheel = installed_wheel.built(tmp_path)
    command = installed_wheel.installed(wheel, tmp_path / "venv", "cli") / "trainingrun"
    (tmp_path / "run.yaml").write_text(SAMPLE.read_text())
    arguments = ["submit", "run.yaml", "--no-watch", "--namespace", namespace]
    config = str(apiserver.kubeconfig)
    said = installed_wheel.call(tmp_path, str(command), *arguments, KUBECONFIG=config)
    assert said.endswith(f"script applied to namespace {namespace}\n")
    assert apiserver.get(API_VERSION, KIND, "script", namespace)["spec"]["workers"]["count"] == 2
