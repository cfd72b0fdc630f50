"""Keys that are rotated or lost, against a real API server and the real progress server."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.operators import (
    PlaysKubeRay,
    a_run,
    credentials_of,
    eventually,
    running,
    settings_for,
)
from support.ports import free_port
from support.processes import ROOT
from trainingrun.controller import operator as operators
from trainingrun.controller.operator import Operator
from trainingrun.controller.progress_polling import Target
from trainingrun.controller.tokens import KEY_SECRET


@pytest.fixture
def system(apiserver):
    """The operator's own namespace."""
    return apiserver.new_namespace()


@pytest.fixture
def key_path(apiserver, system):
    metadata = {"name": KEY_SECRET, "namespace": system}
    return apiserver.path({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})


class PlaysKubelet:
    """Brings the Secrets of the head's projected volume into a folder, also while the pod runs."""

    def __init__(self, apiserver, namespace: str, folder: Path):
        self._apiserver, self._namespace, self._folder = apiserver, namespace, folder

    async def run(self, job: dict) -> None:
        template = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        (volume,) = [one for one in template["volumes"] if one["name"] == "tokens"]
        while True:
            for source in volume["projected"]["sources"]:
                await asyncio.to_thread(self._bring, source["secret"])
            await asyncio.sleep(0.5)

    def _bring(self, source: dict) -> None:
        (item,) = source["items"]
        file = self._folder / item["path"]
        path = f"/api/v1/namespaces/{self._namespace}/secrets/{source['name']}"
        try:
            data = self._apiserver.request("GET", path)["data"]
        except Exception:
            file.unlink(missing_ok=True)
            return
        file.write_bytes(base64.b64decode(data[item["key"]]))


@pytest.fixture
async def a_training(apiserver, namespace, tmp_path):
    """What an attempt's head is: the real progress server, with a document and mounted tokens."""
    tokens, state, port = tmp_path / "tokens", tmp_path / "state", free_port()
    tokens.mkdir()
    state.mkdir()
    roots = [str(ROOT / root) for root in ("operator", "training_images")]
    process = subprocess.Popen(  # noqa: ASYNC220 - beside the test, not in it
        [sys.executable, "-m", "trainingrun_runtime.progress.server"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(roots),
            "TRAININGRUN_PROGRESS_PORT": str(port),
            "TRAININGRUN_STATE_DIRECTORY": str(state),
            "TRAININGRUN_TOKEN_FOLDER": str(tokens),
        },
    )
    kubelet = PlaysKubelet(apiserver, namespace, tokens)

    class Training:
        url = f"http://127.0.0.1:{port}"
        task = None

        def at(self, step: int) -> None:
            found = {
                "attempt": 1,
                "fencingToken": 1,
                "state": "Training",
                "worldSize": 1,
                "step": step,
            }
            part = state / "part"
            part.write_text(json.dumps(found))
            part.replace(state / "progress.json")

        def begins(self, kuberay: PlaysKubeRay, run: dict) -> None:
            kuberay.starts(run)
            self.task = asyncio.create_task(kubelet.run(kuberay.job("digits-1")))

    training = Training()
    yield training
    if training.task:
        training.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await training.task
    process.kill()
    process.wait()


@pytest.fixture
def new_operator(apiserver, namespace, system, a_training):
    def target(operator, key, uid, attempt):
        found = operator.head_of(key, uid, attempt)
        return found and Target(found.pod_uid, a_training.url, found.token_key)

    async def make() -> Operator:
        settings = settings_for(namespace, operator_namespace=system)
        return Operator(settings, credentials_of(apiserver), target)

    return make


def in_mid_run(apiserver, namespace, a_training, status):
    """A run whose head has reported step 3."""

    async def begin() -> dict:
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        a_training.at(3)
        a_training.begins(PlaysKubeRay(apiserver, namespace), run)
        await eventually(lambda: status().get("progress", {}).get("step") == 3)
        return run

    return begin()


async def test_a_key_that_is_lost_with_every_operator_heals_in_a_head_that_runs(
    apiserver, namespace, kuberay, key_path, a_training, new_operator, status
):
    async with running(await new_operator()):
        await in_mid_run(apiserver, namespace, a_training, status)
    apiserver.request("DELETE", key_path)
    a_training.at(9)
    async with running(await new_operator()):
        await eventually(lambda: status()["progress"]["step"] == 9)
    assert status()["attempt"] == 1
    assert kuberay.jobs() == ["digits-1"]
    assert not any(status().get("disruptions", {}).values())


async def test_a_rotated_key_is_read_while_the_operator_runs_and_costs_nothing(
    apiserver, namespace, key_path, a_training, new_operator, status, monkeypatch
):
    monkeypatch.setattr(operators, "KEY_REFRESH_S", 0.2)
    async with running(await new_operator()) as operator:
        await in_mid_run(apiserver, namespace, a_training, status)
        (before,) = operator._keyring.tokens.keys
        secret = apiserver.request("GET", key_path)
        secret["data"] = {"former": secret["data"]["key"]}
        apiserver.request("PUT", key_path, secret)
        await eventually(lambda: operator._keyring.tokens.keys[0] != before)
        assert operator._keyring.tokens.keys[1:] == (before,)
        a_training.at(9)
        await eventually(lambda: status()["progress"]["step"] == 9)
    assert set(apiserver.request("GET", key_path)["data"]) == {"former", "key"}


async def test_garbage_in_the_key_s_secret_ends_no_operator_and_heals(
    apiserver, namespace, key_path, a_training, new_operator, status
):
    async with running(await new_operator()):
        await in_mid_run(apiserver, namespace, a_training, status)
    secret = apiserver.request("GET", key_path)
    secret["data"] = {"key": base64.b64encode(b"short").decode()}
    apiserver.request("PUT", key_path, secret)
    a_training.at(9)
    async with running(await new_operator()):
        await eventually(lambda: status()["progress"]["step"] == 9)
    assert len(base64.b64decode(apiserver.request("GET", key_path)["data"]["key"])) == 32


async def test_a_run_s_secret_that_somebody_deletes_comes_back(
    apiserver, namespace, a_training, new_operator, status
):
    async with running(await new_operator()):
        await in_mid_run(apiserver, namespace, a_training, status)
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        (name,) = [
            item["metadata"]["name"]
            for item in apiserver.request("GET", secrets)["items"]
            if "-token-" in item["metadata"]["name"]
        ]
        apiserver.request("DELETE", f"{secrets}/{name}")
        await eventually(lambda: apiserver.request("GET", f"{secrets}/{name}"))
        a_training.at(9)
        await eventually(lambda: status()["progress"]["step"] == 9)
