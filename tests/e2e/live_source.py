"""E2E_LIVE_SOURCE=1: pods run the working tree's Python code instead of what is in their images.

For work on the product: a try then costs seconds, not the minutes of building images and loading
them into nodes. Whatever is not Python code (dependencies, the bash entries) is still the image's.
"""

import json
from typing import Any

from .cluster import ROOT, TestCluster
from .kube import Kubectl, run

ON_NODE = "/var/trainingrun-source"
IN_POD = "/source"
VOLUME = {"name": "source", "hostPath": {"path": ON_NODE}}
MOUNT = {"name": "source", "mountPath": IN_POD, "readOnly": True}
ENV = {"name": "PYTHONPATH", "value": IN_POD}


def copy_to_nodes(cluster: TestCluster) -> None:
    """Copy the packages to the nodes on which our pods run."""
    for node in cluster.workers:
        cluster.on_node(node, f"rm -rf {ON_NODE} && mkdir -p {ON_NODE}")
        for package in (
            "operator/trainingrun",
            "operator/trainingrun_protocol",
            "training_images/trainingrun_runtime",
        ):
            run("docker", "cp", "--quiet", str(ROOT / package), f"{node}:{ON_NODE}/")


def in_training(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec, with the source in the head and in every worker."""
    training = dict(spec["training"])
    training["env"] = [*training.get("env", []), ENV]
    return {
        **spec,
        "training": training,
        "head": _with_source(spec["head"], "ray-head"),
        "workers": _with_source(spec["workers"], "ray-worker"),
    }


def in_operator(system: Kubectl, deployment: str) -> None:
    """Give the operator the source too."""
    container = {"name": "operator", "env": [ENV], "volumeMounts": [MOUNT]}
    template = {"spec": {"template": {"spec": {"containers": [container], "volumes": [VOLUME]}}}}
    system("patch", "deployment", deployment, "--type=strategic", f"--patch={json.dumps(template)}")


def _with_source(part: dict[str, Any], name: str) -> dict[str, Any]:
    template = part.get("podTemplate", {}).get("spec", {})
    containers = {entry["name"]: entry for entry in template.get("containers", [])}
    container = containers.setdefault(name, {"name": name})
    containers[name] = {
        **container,
        "volumeMounts": [*container.get("volumeMounts", []), MOUNT],
    }
    volumes = [*template.get("volumes", []), VOLUME]
    spec = {**template, "containers": list(containers.values()), "volumes": volumes}
    return {**part, "podTemplate": {"spec": spec}}
