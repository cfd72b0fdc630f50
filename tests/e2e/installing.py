"""The operator on the test cluster, by each of the two ways that the project offers."""

import re

from . import live_source
from .cluster import (
    LIVE_SOURCE,
    OPERATOR_IMAGE,
    ROOT,
    SYSTEM,
    TRAINING_IMAGE,
    TestCluster,
    available,
    image_id,
    load_image,
)
from .kube import run, wait_for

CHART = ROOT / "charts" / "trainingrun-operator"
MANIFEST = ROOT / "manifests" / "install.yaml"
RELEASE = "trainingrun-operator"
DEPLOYMENT = "trainingrun-operator"


def install_by_chart(cluster: TestCluster, **values: object) -> None:
    """`helm upgrade --install`, with the images that were just built and other values of the chart.

    Args:
        cluster: Where.
        values: The chart's, by the path with __ for a dot.
    """
    load_image(cluster, OPERATOR_IMAGE, cluster.on_demand_node)
    repository, _, tag = OPERATOR_IMAGE.partition(":")
    run(
        "helm", "upgrade", "--install", RELEASE, str(CHART), "--create-namespace",
        f"--kubeconfig={cluster.kubectl.kubeconfig}", f"--namespace={SYSTEM}",
        f"--set=image.repository={repository}", f"--set=image.tag={tag}",
        # A rebuilt image has the same tag: with this, the pods are replaced even so.
        f"--set=podAnnotations.image={image_id(OPERATOR_IMAGE)}",
        "--set=image.pullPolicy=Never", f"--set=training.image={TRAINING_IMAGE}",
        *(f"--set={name.replace('__', '.')}={value}" for name, value in values.items()),
        timeout=180,
    )  # fmt: skip
    system = cluster.kubectl.within(SYSTEM)
    if LIVE_SOURCE:
        live_source.in_operator(system, DEPLOYMENT)
        system("rollout", "restart", f"deployment/{DEPLOYMENT}")
    available(system, DEPLOYMENT)


def uninstall_chart(cluster: TestCluster) -> None:
    """Remove the release, and the CRD, which Helm is told to keep: the other way brings its own."""
    run(
        "helm", "uninstall", RELEASE, f"--kubeconfig={cluster.kubectl.kubeconfig}",
        f"--namespace={SYSTEM}", "--ignore-not-found", "--wait", timeout=120,
    )  # fmt: skip
    cluster.kubectl("delete", "crd", "trainingruns.trainingrun.dev", "--ignore-not-found")


def install_by_manifest(cluster: TestCluster) -> None:
    """`kubectl apply --server-side -f manifests/install.yaml`, the file as it is."""
    for image in set(re.findall(r"^\s*image: [\"']?([^\s\"']+)", MANIFEST.read_text(), re.M)):
        run("docker", "tag", OPERATOR_IMAGE, image)
        load_image(cluster, image, cluster.on_demand_node)
    cluster.kubectl.within("")("apply", "--server-side", f"--filename={MANIFEST}")
    available(cluster.kubectl.within(SYSTEM), DEPLOYMENT)


def uninstall_manifest(cluster: TestCluster) -> None:
    """Take it back, and wait until its namespace is free for the chart."""
    everywhere = cluster.kubectl.within("")
    everywhere("delete", "--ignore-not-found", f"--filename={MANIFEST}", timeout=180)
    wait_for(
        f"namespace {SYSTEM} is gone",
        lambda: cluster.kubectl.find("namespace", SYSTEM) is None,
        timeout=60,
    )
