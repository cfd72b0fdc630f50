"""`make cluster`: the cluster of the end-to-end tests, with the operator and a sample run.

What is there already is kept, so that a second call installs the images and the chart anew.
"""

import shutil
import sys
from pathlib import Path

import yaml

from . import cluster as clusters
from . import installing
from .kube import CommandError
from .runs import specification

TOOLS = ("docker", "kind", "kubectl", "helm")
NAMESPACE = "demo"
SAMPLE = clusters.ROOT / "manifests" / "samples" / "digits.yaml"

NEXT = """
A cluster with KubeRay, a bucket, the operator and the run {run} is there:

    export KUBECONFIG={kubeconfig}
    kubectl get trainingruns --watch                    # or: trainingrun watch {run}
    kubectl delete pod -l trainingrun.dev/run={run},trainingrun.dev/role=worker
    kind delete cluster --name {name}

A run of your own has this storage there:

    storage:
      uri: s3://runs/demo
      endpoint: {endpoint}
      region: us-east-1
      credentialsSecret: s3-credentials

What reads or writes the bucket from here (submit --code, trace, metrics …) needs
--endpoint http://127.0.0.1:7070, and:

    kubectl -n storage port-forward svc/s3 7070 &
    export {credentials}"""


def main() -> int:
    """Make it, and print what to do with it; 1: a step failed, 2: a tool is missing."""
    name = sys.argv[1]
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        print(f"make cluster needs {', '.join(missing)} on PATH", file=sys.stderr)
        return 2
    try:
        cluster, run = make(name)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    # These keys are of the S3 server that `storage.yaml` makes for tests, and are nobody's secret.
    credentials = " ".join(f"{key}={value}" for key, value in clusters.CREDENTIALS.items())
    kubeconfig, endpoint = cluster.kubectl.kubeconfig, clusters.ENDPOINT
    print(
        NEXT.format(
            name=name,
            run=run,
            kubeconfig=kubeconfig,
            endpoint=endpoint,
            credentials=credentials,
        )
    )
    return 0


def make(name: str) -> tuple[clusters.TestCluster, str]:
    """The cluster, and the name of the run on it."""
    step("build the images of operator and training")
    clusters.build_images()
    step(f"create the kind cluster {name} with KubeRay and a bucket")
    cluster = clusters.create_cluster(name)
    step("load the training image into the nodes")
    clusters.load_image(cluster, clusters.TRAINING_IMAGE, *cluster.workers)
    step("install the operator")
    installing.install_by_chart(cluster)
    kubectl = clusters.namespace(cluster, NAMESPACE)
    kubectl("config", "set-context", "--current", f"--namespace={NAMESPACE}")
    run = sample(SAMPLE)
    step(f"apply TrainingRun {run['metadata']['name']}")
    kubectl.apply(run)
    return cluster, run["metadata"]["name"]


def sample(path: Path) -> dict[str, object]:
    """A sample's run with this cluster's bucket, and requests that fit on small nodes."""
    run = yaml.safe_load(path.read_text())
    run["spec"] = specification(
        training=run["spec"]["training"], checkpoints=run["spec"]["checkpoints"]
    )
    return run


def step(what: str) -> None:
    """Say what is done now; the longest step takes minutes."""
    print(f"== {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
