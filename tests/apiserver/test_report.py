"""`trainingrun report` against a real API server: what is in the archive, and what never is."""

import socket
import ssl
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiServer
from support.operators import a_ray_job, a_run, controlled_by, owned_by
from support.tls import certificates
from trainingrun.client import kube
from trainingrun.cluster.resources import RAY_API
from trainingrun.rendering import names

READ = [
    {"apiGroups": ["trainingrun.dev"], "resources": ["trainingruns"], "verbs": ["get"]},
    {"apiGroups": ["ray.io"], "resources": ["rayjobs", "rayclusters"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
]
LOGS = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
SECRETS = {
    where: f"planted-in-{where}-4711"
    for where in ("env", "template", "annotation", "args", "config", "webhook", "url", "secret")
}


def a_node(name: str, port: int) -> dict[str, Any]:
    """A node whose kubelet listens on this machine."""
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


@pytest.fixture
def kubelet(apiserver: ApiServer, namespace: str, tmp_path: Path) -> Iterator[str]:
    """A node whose kubelet has logs, in which all secrets stand; no real one runs here."""
    of_objects = {where: SECRETS[where] for where in SECRETS if where not in ("url", "secret")}
    printed = "".join(f"{where} is {secret}\n" for where, secret in of_objects.items())
    printed += f"password={SECRETS['secret']} https://me:{SECRETS['url']}@host/ step 480/600\n"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "tailLines=1000" in self.path
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{self.path.split('?')[0]}\n{printed}".encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    name = f"node-of-{namespace}"
    apiserver.create(a_node(name, server.server_port))
    yield name
    server.shutdown()
    server.server_close()
    apiserver.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def run(apiserver: ApiServer, namespace: str, kubelet: str, monkeypatch) -> None:
    """A run with pods, and secrets wherever somebody may have put one."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    template = [{"name": "ray-worker", "env": [{"name": "B", "value": SECRETS["template"]}]}]
    manifest = a_run(
        namespace,
        training={
            "script": {"path": "/app/train.py", "args": ["--login", SECRETS["args"]]},
            "env": [{"name": "ANY", "value": SECRETS["env"]}],
            "config": {"wandb_token": SECRETS["config"], "steps": 600},
        },
        workers={"count": 1, "podTemplate": {"spec": {"containers": template}}},
    )
    manifest["metadata"]["annotations"] = {
        "team/contact": SECRETS["annotation"],
        "kubectl.kubernetes.io/last-applied-configuration": f"{{'env': '{SECRETS['env']}'}}",
    }
    made = apiserver.create(manifest)
    progress = {"metrics": {"said": SECRETS["env"]}, "step": 480}
    apiserver.replace({**made, "status": {"phase": "Running", "progress": progress}}, "status")
    job = apiserver.create(a_ray_job(made))
    head = {"rayStartParams": {}, "template": {"spec": {"containers": template}}}
    cluster = {
        "apiVersion": RAY_API,
        "kind": "RayCluster",
        "metadata": owned_by(made, "digits-1-abcde") | {"ownerReferences": [controlled_by(job)]},
        "spec": {"headGroupSpec": head},
    }
    apiserver.create(cluster)
    for role in (names.HEAD, names.WORKER):
        container = {
            "name": f"ray-{role}",
            "image": "none",
            "args": ["--login", SECRETS["args"]],
            "env": [{"name": "INJECTED", "value": SECRETS["webhook"]}],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": owned_by(made, f"digits-1-{role}", role=role),
            "spec": {"containers": [container], "nodeName": kubelet},
        }
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        status = {"name": f"ray-{role}", "image": "none", "imageID": "", "ready": True}
        status |= {"restartCount": 0, "state": state}
        kept = {"phase": "Running", "containerStatuses": [status]}
        apiserver.replace({**apiserver.create(pod), "status": kept}, "status")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"digits-1-{role}.1", "namespace": namespace},
            "involvedObject": {"kind": "Pod", "name": f"digits-1-{role}", "namespace": namespace},
            "reason": "Pulled",
            "message": f"with {SECRETS['template']}",
        }
        apiserver.create(event)
    secret = {"name": "a-secret", "namespace": namespace}
    value = {"token": SECRETS["secret"]}
    apiserver.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": value}
    )


def read(archive: Path) -> dict[str, str]:
    """Its files by name, without the folder."""
    with tarfile.open(archive) as found:
        members = {member.name: found.extractfile(member) for member in found.getmembers()}
    assert {name.partition("/")[0] for name in members} == {"digits-report"}
    with tarfile.open(archive) as found:
        return {name.partition("/")[2]: found.extractfile(name).read().decode() for name in members}


@pytest.mark.usefixtures("run")
def test_the_archive_has_what_a_bug_report_needs_and_no_secret(call_as, tmp_path: Path) -> None:
    target = tmp_path / "report.tar.gz"
    code, output, errors = call_as([*READ, LOGS], "report", "digits", "--to", str(target))
    assert (code, output) == (0, f"{target} written; read it before you pass it on\n")
    assert target.stat().st_mode & 0o777 == 0o600
    files = read(target)
    assert [secret for secret in SECRETS.values() if secret in str(files)] == []

    assert "steps: 600" in files["trainingrun.yaml"]
    assert "phase: Running" in files["trainingrun.yaml"]
    assert "name: digits-1\n" in files["rayjobs.yaml"]
    assert "name: digits-1-abcde" in files["rayclusters.yaml"]
    assert "name: INJECTED" in files["pods.yaml"]
    assert files["events.yaml"].count("reason: Pulled") == 2
    assert "kubernetes: v1." in files["versions.txt"]
    logs = [name for name in files if name.startswith("logs/")]
    assert logs == ["logs/digits-1-head/ray-head.log", "logs/digits-1-worker/ray-worker.log"]
    assert "step 480/600" in files[logs[0]]
    # Somebody who may not list the operator's Deployments is told so.
    assert "operator: unknown (" in files["versions.txt"]
    (line,) = errors.splitlines()
    assert line.startswith("not read: bucket: ")

    again = call_as([*READ, LOGS], "report", "digits", "--to", str(target))
    assert again == (1, "", f"{target} is there already; name another file with --to\n")


@pytest.mark.usefixtures("run")
def test_what_may_not_be_read_is_named_in_the_archive(call_as, tmp_path: Path) -> None:
    target = tmp_path / "report.tar.gz"
    code, _, errors = call_as([READ[0], READ[2]], "report", "digits", "--to", str(target))
    files = read(target)
    refused = files["not-read.txt"].splitlines()
    assert code == 0
    assert [f"not read: {line}" for line in refused] == errors.splitlines()
    kinds = ["RayJobs", "RayClusters", "log of ", "log of ", "bucket: "]
    for line, what in zip(refused, kinds, strict=True):
        assert line.startswith(what)
        assert "is forbidden: User" in line or what == "bucket: "
    assert "name: INJECTED" in files["pods.yaml"]
    assert files["rayjobs.yaml"] == ""


@pytest.mark.usefixtures("run")
def test_a_node_that_does_not_answer_is_waited_for_once(
    apiserver: ApiServer, namespace: str, call_as, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "_TIMEOUT_S", 2)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    pod = apiserver.request("GET", f"{pods}/digits-1-worker")
    with socket.create_server(("127.0.0.1", 0)) as lost:
        name = f"lost-node-of-{namespace}"
        apiserver.create(a_node(name, lost.getsockname()[1]))
        containers = [{"name": each, "image": "none"} for each in ("a", "b")]
        metadata = {**pod["metadata"], "name": "digits-1-lost"}
        metadata = {key: metadata[key] for key in ("name", "namespace", "labels")}
        spec = {"containers": containers, "nodeName": name}
        made = apiserver.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
        (of_one,) = pod["status"]["containerStatuses"]
        statuses = [{**of_one, "name": each} for each in ("a", "b")]
        status = {"phase": "Running", "containerStatuses": statuses}
        apiserver.replace({**made, "status": status}, "status")
        target = tmp_path / "report.tar.gz"
        assert call_as([*READ, LOGS], "report", "digits", "--to", str(target))[0] == 0
    apiserver.request("DELETE", f"/api/v1/nodes/{name}")
    files = read(target)
    said = [line for line in files["not-read.txt"].splitlines() if line.startswith("log of ")]
    assert said[0].startswith("log of digits-1-lost/a: the cluster does not answer: ")
    assert said[1:] == [f"log of digits-1-lost/b: node {name} does not answer"]
    assert "step 480/600" in files["logs/digits-1-worker/ray-worker.log"]
