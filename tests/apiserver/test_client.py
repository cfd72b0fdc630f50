"""`Client()` against a real API server, with a real S3 server for the code."""

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import cli_server, notebook_cells
from support.apiserver import ApiServer
from support.binaries import skipping_unavailable
from support.s3 import CREDENTIALS, S3Server, running_s3
from trainingrun import Client, RunError
from trainingrun.api.status import Phase
from trainingrun.api.v1alpha1 import API_VERSION, KIND, TrainingRun
from trainingrun.client import RunTimeoutError, following
from trainingrun.client.run import Run
from trainingrun.client.sources import Cluster

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "cluster.ipynb"
PAGE = NOTEBOOK.parents[1] / "python.md"
SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "digits.yaml"
DIGITS = {"epochs": 20, "lr": 0.05, "batch_size": 64, "step_seconds": 0.1}
"""The config of the sample."""
TIME = "2030-01-01T00:00:00Z"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with skipping_unavailable(), running_s3(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def _kubeconfig(
    apiserver: ApiServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names the test's namespace, as a user's kubeconfig does."""
    config = json.loads(apiserver.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(following, "POLL_INTERVAL_S", 0.05)


@pytest.fixture
def stands(apiserver: ApiServer, namespace: str) -> Any:
    """Writes the status of a run, as the operator would."""

    def write(name: str, phase: str, *conditions: dict[str, str], **status: Any) -> None:
        run = apiserver.get(API_VERSION, KIND, name, namespace)
        run["status"] = {
            "phase": phase,
            "conditions": [
                {"status": "True", "lastTransitionTime": TIME, **one} for one in conditions
            ],
            **status,
        }
        apiserver.replace(run, "status")

    return write


def said(error: pytest.ExceptionInfo[RunError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_notebook_submits_a_function_and_follows_its_run(
    apiserver: ApiServer,
    namespace: str,
    s3: S3Server,
    stands: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    storage = {"uri": "s3://runs/notebooks", "endpoint": s3.url, "region": "us-east-1"}
    names: dict[str, Any] = {"__name__": "__main__"}

    def cells() -> Iterator[str]:
        for source in notebook_cells.code_cells(NOTEBOOK):
            if source.startswith("run.wait"):
                uri = f"{names['run'].folder}/checkpoints/x"
                newest = {"uri": uri, "step": 40, "time": TIME}
                stands(names["run"].name, "Succeeded", checkpoint=newest)
            line, equals, _ = source.partition("STORAGE = ")
            yield f"{line}STORAGE = {storage}\n\nclient = Client()" if equals else source

    notebook_cells.run(cells(), names)
    run = apiserver.get(API_VERSION, KIND, names["run"].name, namespace)
    code = run["spec"]["training"].pop("code")["uri"]
    assert {key: run["spec"]["training"][key] for key in ("function", "config")} == {
        "function": "cell:train",
        "config": {"lr": 0.1, "steps": 10_000},
    }
    assert run["spec"]["workers"]["count"] == 4
    assert run["spec"]["checkpoints"]["everySeconds"] == 60
    packed = s3.file(code.removeprefix("s3://runs/")).read_bytes()
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.namelist() == ["cell.py"]
        assert archive.read("cell.py").startswith(b"def train(config):\n    import torch\n")

    output = capsys.readouterr().out
    assert f"<b>{names['run'].name}</b><div>Pending</div>" in output
    assert "['KubeRay" in output or "'operator: no Deployment of the operator is there" in output
    assert names["again"].name == f"{names['run'].name}-retry-1"
    assert f"'{names['run'].name}'" in output.splitlines()[-1]
    assert names["again"].name not in output.splitlines()[-1]  # it is deleted


def test_the_examples_of_the_page_work(
    apiserver: ApiServer, namespace: str, s3: S3Server, stands: Any
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    bucket = f'"endpoint": "{s3.url}", "region": "us-east-1"'

    def cells() -> Iterator[str]:
        *of_clusters, on_this_machine = notebook_cells.code_cells(PAGE)
        assert "local=True" in on_this_machine
        for source in of_clusters:
            if source.startswith("run.wait"):
                stands(names["run"].name, "Succeeded")
            if source.startswith("run.suspend"):
                stands(names["run"].name, "Running")
            yield source.replace('"credentialsSecret": "s3-credentials"', bucket)

    notebook_cells.run(cells(), names)
    run = apiserver.get(API_VERSION, KIND, names["run"].name, namespace)
    assert run["spec"]["suspend"] is False
    assert [each.name for each in names["client"].list()] == [names["run"].name]


def test_a_run_is_begun_again_from_its_checkpoint_with_other_settings(
    apiserver: ApiServer, namespace: str, stands: Any
) -> None:
    client = Client()
    run = client.submit(SAMPLE, config={"lr": 0.5}, name="first", workers={"perPod": 2})
    sent = apiserver.get(API_VERSION, KIND, "first", namespace)["spec"]
    assert sent["training"]["config"] == {**DIGITS, "lr": 0.5}
    assert (sent["workers"]["count"], sent["workers"]["perPod"]) == (2, 2)
    stands("first", "Running", checkpoint={"uri": f"{run.folder}/x", "step": 40, "time": TIME})
    again = run.retry(config={"lr": 0.1, "epochs": None}, step=40, workers={"count": 4})
    made = apiserver.get(API_VERSION, KIND, again.name, namespace)["spec"]
    assert made["storage"]["restoreFrom"] == {"uri": run.folder, "step": 40}
    assert made["training"]["config"] == {"lr": 0.1, "batch_size": 64, "step_seconds": 0.1}
    assert (made["workers"]["count"], made["workers"]["perPod"]) == (4, 2)
    assert [each.name for each in client.list()] == ["first", "first-retry-1"]


def test_a_model_and_a_mapping_are_sent_as_they_are(apiserver: ApiServer, namespace: str) -> None:
    spec = {
        "training": {"function": "pkg.train:main"},
        "storage": {"uri": "s3://runs/x"},
        "workers": {"accelerator": {"kind": "nvidia", "product": "NVIDIA-H100-80GB-HBM3"}},
    }
    run = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": spec}
    client = Client(namespace)
    client.submit(run)
    model = TrainingRun.model_validate({**run, "metadata": {"name": "b", "labels": {"x": "y"}}})
    client.submit(model)
    product = "NVIDIA-H100-80GB-HBM3"
    client.submit("pkg.train:main", storage="s3://runs/x", accelerator=product, name="c")
    a, b, c = (apiserver.get(API_VERSION, KIND, name, namespace) for name in "abc")
    assert a["spec"] == b["spec"] == c["spec"]
    assert b["metadata"]["labels"] == {"x": "y"}


def test_a_run_is_waited_for_and_says_why_it_has_failed(stands: Any) -> None:
    run = Client().submit(SAMPLE)
    with pytest.raises(RunTimeoutError) as late:
        run.wait(timeout=0.1)
    assert said(late) == "digits has not ended within 0.1 s, and goes on: Pending"
    waits = {"type": "Waiting", "reason": "Pods", "message": "no node has a free GPU"}
    progress = {"step": 30, "totalSteps": 40, "percent": 75, "ranks": [{"rank": 0}]}
    stands("digits", "Running", waits, progress=progress)
    assert run.why() == ["no node has a free GPU"]
    assert (run.phase, run.progress().percent) == (Phase.RUNNING, 75)
    assert [row.rank for row in run.ranks()] == [0]
    failed = {"type": "Failed", "reason": "MaxRestarts", "message": "rank 0 raised ValueError: x"}
    threading.Thread(target=stands, args=("digits", "Failed", failed)).start()
    with pytest.raises(RunError) as ended:
        run.wait()
    assert said(ended) == "digits failed: MaxRestarts: rank 0 raised ValueError: x"
    assert run.why() == ["MaxRestarts: rank 0 raised ValueError: x"]
    assert "<div>Failed</div>" in run._repr_html_()
    with pytest.raises(RunError) as twice:
        Client().submit(SAMPLE)
    assert said(twice).endswith("has ended (Failed); delete it, or choose another name")


def test_events_and_what_changes_a_run_are_those_of_the_command_line(
    apiserver: ApiServer, namespace: str
) -> None:
    run = Client().submit(SAMPLE)
    for number, reason in enumerate(("Second", "First")):
        apiserver.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"digits.{number}", "namespace": namespace},
                "involvedObject": {"kind": KIND, "name": "digits", "namespace": namespace},
                "type": "Normal",
                "reason": reason,
                "message": "said",
                "lastTimestamp": f"2030-01-01T00:00:0{9 - number}Z",
                "count": 3,
            }
        )
    assert [(one.reason, one.count, one.time.second) for one in run.events()] == [
        ("First", 3, 8),
        ("Second", 3, 9),
    ]
    where = f"TrainingRun digits in namespace {namespace}"
    run.suspend()
    assert apiserver.get(API_VERSION, KIND, "digits", namespace)["spec"]["suspend"] is True
    with pytest.raises(RunError) as twice:
        run.suspend()
    assert said(twice) == f"{where} is asked to suspend already"
    run.resume()
    assert apiserver.get(API_VERSION, KIND, "digits", namespace)["spec"]["suspend"] is False
    run.delete()
    for call in (run.delete, run.wait, run.why, lambda: run.status, lambda: Client().get("digits")):
        with pytest.raises(RunError) as gone:
            call()
        assert said(gone).startswith(f"{where}: not found")


def test_no_name_deletes_or_changes_every_run_of_a_namespace(
    apiserver: ApiServer, namespace: str
) -> None:
    client, where = Client(), Cluster(namespace)
    for name in ("one", "two"):
        client.submit("m:f", storage="s3://runs/x", name=name)
    before = [each.object for each in client.list()]
    for name in ("", ".", "..", "a/b", "one/..", "one/status"):
        run = Run(where, name)
        for request in (
            lambda: client.get(name).delete(),  # noqa: B023 - it is called now
            run.delete,
            run.suspend,
            run.wait,
            run.retry,
        ):
            with pytest.raises(RunError) as refused:
                request()
            assert said(refused).startswith(f"{name!r} is no name of a TrainingRun; write ")
        for command in ("delete", "suspend", "get", "watch"):
            code, output, errors = cli_server.call(command, name, "--namespace", namespace)
            assert (code, output) == (1, "")
            assert errors.startswith(f"{name!r} is no name of a TrainingRun; write ")
    for none in (".", "..", f"{namespace}/trainingruns", f"../namespaces/{namespace}"):
        code, _, errors = cli_server.call("delete", "one", "--namespace", none)
        assert (code, "is no name of a namespace; write " in errors) == (1, True)
    assert [each.object for each in client.list()] == before


def test_what_cannot_be_submitted_is_refused_with_the_command_lines_sentences(
    namespace: str, as_user: Any, tmp_path: Path
) -> None:
    client, mine = Client(), {"train": "m:f", "storage": "s3://runs/x"}
    for given, sentence in (
        ({"train": "m:f"}, "spec.storage is missing"),
        (
            {**mine, "workers": 0},
            "spec.workers.count is 0; write",
        ),
        (
            {**mine, "checkpoint": {}},
            "spec.checkpoint is not a field; did you mean checkpoints?",
        ),
        ({"train": tmp_path / "no.yaml"}, f"{tmp_path / 'no.yaml'}: cannot be read: No such file"),
        ({"train": {"kind": KIND}}, "apiVersion is missing; write apiVersion: "),
        ({"train": 5}, "5 cannot be trained; pass a function, module:function of the image, or"),
        (
            {**mine, "config": {"x": {1, 2}}},
            "config or another field is not plain data (Object of type set is not JSON",
        ),
        (
            {"train": "m:f", "storage": "file:///x", "code": str(Path(__file__).parent)},
            "spec.storage.uri ",
        ),
    ):
        with pytest.raises(RunError) as refused:
            client.submit(**given)
        assert said(refused).startswith(sentence)
    with pytest.raises(RunError, match=r"^local=True needs no namespace and no context"):
        Client(namespace, local=True)
    with pytest.raises(RunError, match=r"^no cluster is configured \("):
        Client(context="another")
    as_user([])
    with pytest.raises(RunError) as forbidden:
        Client(namespace).submit("m:f", storage="s3://runs/x", name="mine")
    assert said(forbidden).startswith(f"TrainingRun mine in namespace {namespace}: ")
    assert "forbidden" in said(forbidden)
