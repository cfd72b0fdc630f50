"""kustomize brings names and images to a TrainingRun and to defaults, by manifests/kustomize."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.binaries import Unavailable, skipping_unavailable
from trainingrun.api.defaults import CLUSTER_DEFAULTS_KIND, DEFAULTS_KIND, FIELDS
from trainingrun.api.parse import parse

CONFIGURATION = Path(__file__).parents[2] / "manifests" / "kustomize" / "trainingrun.yaml"

SPEC = {
    "env": [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "code", "key": "a"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "code"}}, {"secretRef": {"name": "keys"}}],
}
TEMPLATE = {
    "spec": {
        "imagePullSecrets": [{"name": "keys"}],
        "containers": [{"name": "ray-head", "image": "other", **SPEC}],
        "initContainers": [{"name": "b", "image": "other", **SPEC}],
        "volumes": [
            {"name": "a", "configMap": {"name": "code"}},
            {"name": "b", "secret": {"secretName": "keys"}},
            {
                "name": "c",
                "projected": {
                    "sources": [{"configMap": {"name": "code"}}, {"secret": {"name": "keys"}}]
                },
            },
        ],
    }
}
RUN: dict[str, Any] = {
    "apiVersion": "trainingrun.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "digits"},
    "spec": {
        "image": "train:1.0",
        "training": {"script": {"configMap": "code"}, "env": SPEC["env"]},
        "storage": {"uri": "s3://runs", "credentialsSecret": "keys"},
        "notify": [
            {"events": ["Failed"], "webhook": {"secretRef": {"name": "keys", "key": "url"}}},
        ],
        "podTemplate": TEMPLATE,
        "head": {"podTemplate": TEMPLATE},
        "workers": {"podTemplate": TEMPLATE},
    },
}
DEFAULTS = {
    name: value for name, value in RUN["spec"].items() if name in FIELDS and name != "workers"
}
"""What of it can be a default; of `workers` nothing here can."""
OBJECTS = {
    "TrainingRun": RUN,
    **{
        kind: {**RUN, "kind": kind, "metadata": {"name": "default"}, "spec": DEFAULTS}
        for kind in (DEFAULTS_KIND, CLUSTER_DEFAULTS_KIND)
    },
}
KUSTOMIZATION = {
    "configurations": ["trainingrun.yaml"],
    "resources": ["run.yaml"],
    "configMapGenerator": [{"name": "code", "literals": ["a=b"]}],
    "secretGenerator": [{"name": "keys", "literals": ["a=b"]}],
    "images": [{"name": "train", "newName": "registry.example.com/train", "newTag": "2.0"}],
}


@pytest.fixture(params=OBJECTS)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The run, or defaults, that kustomize makes."""
    found = build(tmp_path, OBJECTS[request.param])
    return found[request.param] | {"names": [found[kind]["metadata"]["name"] for kind in KINDS]}


def build(tmp_path: Path, run: dict[str, Any]) -> dict[str, Any]:
    """What kustomize, which kubectl has built in, makes of a run, by kind."""
    kubectl = shutil.which("kubectl")
    with skipping_unavailable():
        if kubectl is None:
            raise Unavailable("kubectl is not on PATH")
    shutil.copy(CONFIGURATION, tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(KUSTOMIZATION))
    done = subprocess.run(
        [kubectl, "kustomize", str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert found["ConfigMap"]["metadata"]["name"].startswith("code-")
    return found


KINDS = ("ConfigMap", "Secret")


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


def test_the_script_of_torchrun_has_its_new_name_too(tmp_path: Path) -> None:
    training = {"torchrun": {"script": {"configMap": "code"}}}
    found = build(tmp_path, {**RUN, "spec": {**RUN["spec"], "training": training}})
    script = found["TrainingRun"]["spec"]["training"]["torchrun"]["script"]
    assert script["configMap"] == found["ConfigMap"]["metadata"]["name"]


def test_every_place_that_names_a_generated_object_has_its_new_name(built: dict[str, Any]) -> None:
    found, before = texts(built["spec"]), texts(OBJECTS[built["kind"]]["spec"])
    code, keys = built["names"]
    assert (found.count(code), found.count(keys)) == (before.count("code"), before.count("keys"))
    assert not {"code", "keys"} & set(found)


def test_images_are_about_the_runs_own_image_too(built: dict[str, Any]) -> None:
    assert built["spec"]["image"] == "registry.example.com/train:2.0"
    if built["kind"] == "TrainingRun":
        parse({key: value for key, value in built.items() if key != "names"})
