"""The test cluster: three kind nodes, KubeRay, a bucket and the operator. Every step is idempotent.

A cluster that is there already is used as it is, so that one scenario can be run again and again.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from .kube import CommandError, Kubectl, run, run_at_once, wait_for

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ARTIFACTS = ROOT / "tests" / ".artifacts"

NODE_IMAGE = "kindest/node:v1.34.4"
KUBERAY_VERSION = os.environ.get("E2E_KUBERAY_VERSION", "1.6.0")
KUBERAY_IMAGE = f"quay.io/kuberay/operator:v{KUBERAY_VERSION}"
STORAGE_IMAGE = "versity/versitygw:v1.8.0"
OPERATOR_IMAGE = "trainingrun-operator:dev"
TRAINING_IMAGE = "trainingrun-torch:dev"

SYSTEM = "trainingrun-system"
NAMESPACE = "e2e"
ENDPOINT = "http://s3.storage.svc.cluster.local:7070"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "trainingrun", "AWS_SECRET_ACCESS_KEY": "trainingrun-e2e"}
LIVE_SOURCE = bool(os.environ.get("E2E_LIVE_SOURCE"))
"""See `live_source`: images that are there already then need not be the newest."""
SPOT_TAINT = "trainingrun.dev/capacity=spot:NoSchedule"
JOURNALS = "/var/trainingrun-e2e"
"""Folder on each node with one folder per run; see `journals`."""


@dataclass(frozen=True)
class TestCluster:
    """What the scenarios need to know about the cluster."""

    __test__ = False

    name: str
    kubectl: Kubectl
    """In the scenarios' namespace."""

    @property
    def on_demand_node(self) -> str:
        """The node without the spot label and taint; the operator and the bucket are on it too."""
        return f"{self.name}-worker"

    @property
    def spot_node(self) -> str:
        """The node with the spot label and taint."""
        return f"{self.name}-worker2"

    @property
    def control_plane(self) -> str:
        """The node with the API server."""
        return f"{self.name}-control-plane"

    @property
    def workers(self) -> tuple[str, str]:
        """The nodes on which training pods may be."""
        return self.on_demand_node, self.spot_node

    def on_node(self, node: str, script: str) -> str:
        """Run a shell script on a node; its stdout."""
        return run("docker", "exec", node, "sh", "-c", script)

    def is_up(self, node: str) -> bool:
        """Whether the machine runs at all."""
        state = run("docker", "inspect", "--format={{.State.Running}}", node, check=False)
        return state.strip() == "true"

    def kill_node(self, node: str) -> None:
        """Turn a machine off: nothing on it gets a signal."""
        run("docker", "kill", node)

    def pause_node(self, node: str) -> None:
        """Stop every process on a machine: it answers nothing, and its connections stay open."""
        run("docker", "pause", node)

    def start_node(self, node: str) -> None:
        """Start a machine that was killed or paused, and wait until it is fit for pods."""
        run("docker", "unpause", node, check=False)
        if not self.is_up(node):
            run("docker", "start", node)
        wait_for(
            f"node {node} Ready and reachable",
            lambda: self._fit_for_pods(node),
            timeout=120,
            instead=lambda: self.kubectl("describe", "node", node),
        )
        self.on_node(node, KEEP_SERVICES_INSIDE)

    def kill_container(
        self,
        kubectl: Kubectl,
        pod: str,
        container: str,
        when: Callable[[], object] = lambda: None,
    ) -> None:
        """`kill -9` of a container's main process, from its node: nothing inside gets a signal.

        Args:
            when: see `run_at_once`.
        """
        node, process = self._main_process(kubectl, pod, container)
        script = f"process={process}; echo prepared; read -r go; kill -9 $process"
        run_at_once(when, "docker", "exec", "--interactive", node, "sh", "-c", script)

    def kill_raylet(self, kubectl: Kubectl, pod: str) -> None:
        """`kill -9` of a worker's raylet, of which `ray start`, stopped before, takes no notice."""
        node, process = self._main_process(kubectl, pod, "ray-worker")
        self.on_node(node, KILL_RAYLET.replace("MAIN", process))

    def _main_process(self, kubectl: Kubectl, pod: str, container: str) -> tuple[str, str]:
        found = kubectl.get("pod", pod)
        (identity,) = (
            entry["containerID"].partition("://")[2]
            for entry in found["status"]["containerStatuses"]
            if entry["name"] == container
        )
        process = f"$(ctr --namespace=k8s.io tasks list | awk '$1 == \"{identity}\" {{print $2}}')"
        return found["spec"]["nodeName"], process

    def _fit_for_pods(self, node: str) -> bool:
        found = self.kubectl.get("node", node)
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in found["status"]["conditions"]
        )
        away = {taint["key"] for taint in found["spec"].get("taints", [])}
        return ready and not any(key.startswith("node.kubernetes.io/") for key in away)


KEEP_SERVICES_INSIDE = """
rule="FORWARD --destination 10.96.0.0/16 --jump REJECT"
iptables -C $rule 2>/dev/null || iptables -I $rule
"""
"""A packet to the address of a Service (kind's default subnet) leads to a pod or is refused.

kube-proxy changes two tables, one after the other, when a Service gets its endpoints back. What is
sent in between leaves the node as it is, to wherever its default route leads.
"""

KILL_RAYLET = """
main=MAIN
kill -STOP "$main"
for child in $(cat /proc/$main/task/*/children); do
  [ "$(cat /proc/$child/comm)" = raylet ] && kill -9 "$child" && killed=yes
done
[ -n "$killed" ]
"""


def journals_of(cluster: str) -> Path:
    """The folder of this machine that is `JOURNALS` on each node."""
    return ARTIFACTS / "journals" / cluster


def create_cluster(name: str) -> TestCluster:
    """Nodes, KubeRay, the bucket and the scenarios' namespace; what is there already is kept."""
    journals_of(name).mkdir(parents=True, exist_ok=True)
    kubeconfig = ARTIFACTS / f"{name}.kubeconfig"
    if name in run("kind", "get", "clusters").split():
        _require_own_journals(name)
    else:
        run(
            "kind", "create", "cluster", f"--name={name}", f"--image={NODE_IMAGE}",
            "--config=-", f"--kubeconfig={kubeconfig}", "--wait=120s",
            stdin=_configuration(name), timeout=300,
        )  # fmt: skip
    run("kind", "export", "kubeconfig", f"--name={name}", f"--kubeconfig={kubeconfig}")
    cluster = TestCluster(name, Kubectl(kubeconfig, NAMESPACE))
    for node in cluster.workers:
        cluster.start_node(node)
    cluster.kubectl("taint", "node", cluster.spot_node, SPOT_TAINT, "--overwrite")
    _kuberay(cluster)
    _storage(cluster)
    namespace(cluster, NAMESPACE)
    return cluster


def _require_own_journals(name: str) -> None:
    """The cluster's nodes have this checkout's journals.

    Raises:
        CommandError: Another checkout has made the cluster, and its nodes note the steps there:
            each test would wait in vain for the first step.
    """
    mounts = json.loads(run("docker", "inspect", "--format={{json .Mounts}}", f"{name}-worker"))
    folders = [mount["Source"] for mount in mounts if mount["Destination"] == JOURNALS]
    if folders != [str(journals_of(name))]:
        raise CommandError(
            f"the kind cluster {name} was made by another checkout, its nodes keep the journals of "
            f"steps in {', '.join(folders) or 'no folder of this machine'}; delete it with "
            f"`kind delete cluster --name {name}`, or set E2E_CLUSTER to another name"
        )


def _configuration(name: str) -> str:
    """kind.yaml, with the journals' folder in each node on which training pods may be."""
    configuration = yaml.safe_load((HERE / "kind.yaml").read_text())
    mount = {"hostPath": str(journals_of(name)), "containerPath": JOURNALS}
    for node in configuration["nodes"]:
        if node["role"] == "worker":
            node["extraMounts"] = [dict(mount)]
    return yaml.safe_dump(configuration)


def delete_cluster(cluster: TestCluster) -> None:
    """Remove the nodes and everything on them."""
    run("kind", "delete", "cluster", f"--name={cluster.name}", timeout=300)


def namespace(cluster: TestCluster, name: str, restricted: bool = False) -> Kubectl:
    """A namespace with the bucket's credentials; restricted: it admits restricted pods only."""
    kubectl = cluster.kubectl.within(name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3-credentials"},
            "stringData": CREDENTIALS,
        }
    )
    return kubectl


def build_images() -> None:
    """Both images of this project, unless E2E_SKIP_BUILD says that they are the wanted ones."""
    if not os.environ.get("E2E_SKIP_BUILD"):
        run("make", f"--directory={ROOT}", "images", timeout=1800)


def versions() -> dict[str, str]:
    """What the tests run on, by the name of the table in docs/compatibility.md."""
    code = (
        "import platform, ray, torch; print(ray.__version__, torch.__version__.partition('+')[0], "
        "'.'.join(platform.python_version_tuple()[:2]))"
    )
    said = run("docker", "run", "--rm", "--entrypoint=python", TRAINING_IMAGE, "-c", code)
    ray, torch, python = said.split()
    return {
        "Kubernetes": f"{NODE_IMAGE.rpartition(':v')[2]} (kind)",
        "KubeRay": f"{KUBERAY_VERSION} (kind)",
        "Ray": ray,
        "PyTorch": torch,
        "Python": python,
    }


def load_image(cluster: TestCluster, image: str, *nodes: str) -> None:
    """Bring an image to nodes; kind itself leaves out those that have the same one already."""
    if not run("docker", "images", "--quiet", image).strip():
        run("docker", "pull", image, timeout=600)
    if LIVE_SOURCE:
        nodes = tuple(node for node in nodes if not _has_some(cluster, image, node))
    if not nodes:
        return
    run(
        "kind", "load", "docker-image", image, f"--name={cluster.name}",
        f"--nodes={','.join(nodes)}", timeout=600,
    )  # fmt: skip


def _has_some(cluster: TestCluster, image: str, node: str) -> bool:
    """Whether a node has an image of that name, however old."""
    listed = cluster.on_node(node, "ctr --namespace=k8s.io images list -q").split()
    return any(found == image or found.endswith(f"/{image}") for found in listed)


def image_id(image: str) -> str:
    """The image's digest: it changes with its content, unlike its tag."""
    return run("docker", "image", "inspect", "--format={{.Id}}", image).strip()


@contextmanager
def forwarded(kubectl: Kubectl, target: str, port: int) -> Iterator[str]:
    """`host:port` on this machine that leads to a pod or service while the block runs."""
    command = [
        "kubectl", f"--kubeconfig={kubectl.kubeconfig}", f"--namespace={kubectl.namespace}",
        "port-forward", target, f":{port}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " -> " not in line:
                raise CommandError(f"kubectl port-forward {target} said: {line!r}")
            yield line.removeprefix("Forwarding from ").split(" -> ")[0]
        finally:
            process.terminate()


def _kuberay(cluster: TestCluster) -> None:
    kubectl = cluster.kubectl.within("default")
    load_image(cluster, KUBERAY_IMAGE, cluster.on_demand_node)
    if manifest := os.environ.get("KUBERAY_MANIFEST"):
        kubectl("apply", "--server-side", f"--filename={manifest}", timeout=120)
    else:
        run(
            "helm", "upgrade", "--install", "kuberay-operator", "kuberay-operator",
            "--repo=https://ray-project.github.io/kuberay-helm/", f"--version={KUBERAY_VERSION}",
            f"--kubeconfig={kubectl.kubeconfig}", "--namespace=default", timeout=300,
        )  # fmt: skip
    available(kubectl, "kuberay-operator")
    template = kubectl.get("deployment", "kuberay-operator")["spec"]["template"]
    (image,) = (container["image"] for container in template["spec"]["containers"])
    if image != KUBERAY_IMAGE:
        raise CommandError(
            f"the cluster's KubeRay is {image}, not {KUBERAY_IMAGE}; set KUBERAY_MANIFEST to a "
            f"file with KubeRay {KUBERAY_VERSION}, or E2E_KUBERAY_VERSION to its version"
        )


def _storage(cluster: TestCluster) -> None:
    load_image(cluster, STORAGE_IMAGE, cluster.on_demand_node)
    kubectl = cluster.kubectl.within("storage")
    kubectl.apply_text((HERE / "storage.yaml").read_text())
    available(kubectl, "s3")


def available(kubectl: Kubectl, deployment: str, timeout: int = 120) -> None:
    """Wait until a deployment is rolled out."""
    try:
        kubectl(
            "rollout", "status", f"deployment/{deployment}", f"--timeout={timeout}s",
            timeout=timeout + 10,
        )  # fmt: skip
    except CommandError as error:
        pods = json.dumps([pod.get("status") for pod in kubectl.list("pods")], indent=1)
        raise CommandError(f"{error}\nPods there: {pods[-3000:]}") from None
