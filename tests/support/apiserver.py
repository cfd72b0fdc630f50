"""A real API server for tests: etcd and kube-apiserver on loopback, RBAC on, nothing else.

No controllers run: nothing collects garbage, fills service accounts, or ends a namespace.
"""

import base64
import contextlib
import itertools
import json
import os
import re
import secrets
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.binaries import apiserver_binaries, kuberay_crds
from support.ports import free_ports
from trainingrun.api.crd import crd, defaults_crds
from trainingrun.cluster.bounded_json import loads

START_SECONDS = 180
"""For each step of the start, on a machine that is busy with other things."""
JSON, APPLY, MERGE = (
    "application/json",
    "application/apply-patch+yaml",
    "application/merge-patch+json",
)


class ApiError(Exception):
    """The API server refused a request; `code` is the HTTP status, the text its own message."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def said(error: ApiError) -> str:
    """Its text; of an older API server in the words that Kubernetes has had since 1.34."""
    text = re.sub(r"may not be longer than (\d+)", r"may not be more than \1 bytes", str(error))
    return text.replace("map[string]interface {}{", "{")


class ApiServer:
    """A running API server and its administrator.

    Attributes:
        url: Where it listens.
        token: The administrator's bearer token.
        ca_file: Certificate that it is known by.
        kubeconfig: File for kubectl, helm and any client library.
        etcd: Where its etcd listens.
    """

    def __init__(self, url: str, token: str, ca_file: Path, kubeconfig: Path, etcd: str = ""):
        self.url, self.token, self.ca_file, self.kubeconfig = url, token, ca_file, kubeconfig
        self.etcd = etcd
        self._resources: dict[str, list[dict[str, Any]]] = {}
        self._names = itertools.count(1)
        self._tls: ssl.SSLContext | None = None

    @property
    def minor(self) -> int:
        """Of its version: 34 of Kubernetes 1.34."""
        return int(self.request("GET", "/version")["minor"].rstrip("+"))

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | str | None = None,
        content_type: str = JSON,
        as_user: str | None = None,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """One request, as the administrator or, with `as_user`, impersonating that user.

        Raises:
            ApiError: any answer but 2xx.
        """
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": content_type,
            "Accept": accept,
        }
        if as_user:
            headers["Impersonate-User"] = as_user
        request = urllib.request.Request(
            self.url + path,
            data=data.encode() if data is not None else None,
            headers=headers,
            method=method,
        )
        self._tls = self._tls or ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
            with contextlib.suppress(ValueError, KeyError):
                text = json.loads(text)["message"]
            raise ApiError(error.code, text) from None
        return loads(content) if content.startswith(b"{") else {"text": content.decode()}

    def create(self, manifest: Mapping[str, Any], dry_run: bool = False) -> dict[str, Any]:
        """POST with strict field validation."""
        return self.request("POST", self.path(manifest, "") + _options(dry_run), manifest)

    def apply(
        self, manifest: Mapping[str, Any], dry_run: bool = False, manager: str = "tests"
    ) -> dict[str, Any]:
        """Server-side apply, forced, with strict field validation."""
        path = self.path(manifest) + _options(dry_run) + f"&fieldManager={manager}&force=true"
        return self.request("PATCH", path, manifest, APPLY)

    def replace(self, manifest: Mapping[str, Any], subresource: str = "") -> dict[str, Any]:
        """PUT, with `subresource` such as "status"."""
        path = self.path(manifest) + (f"/{subresource}" if subresource else "")
        return self.request("PUT", path + _options(False), manifest)

    def get(self, api_version: str, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """GET one object; ApiError with code 404 if it is absent."""
        metadata = {"name": name, "namespace": namespace}
        return self.request(
            "GET", self.path({"apiVersion": api_version, "kind": kind, "metadata": metadata})
        )

    def path(self, manifest: Mapping[str, Any], name: str | None = None) -> str:
        """URL path of a manifest's object; with name "" of its collection."""
        version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._resources:
            self._resources[version] = self.request("GET", root)["resources"]
        resource = next(
            found
            for found in self._resources[version]
            if found["kind"] == kind and "/" not in found["name"]
        )
        if resource["namespaced"]:
            root += f"/namespaces/{metadata.get('namespace') or 'default'}"
        name = metadata["name"] if name is None else name
        return f"{root}/{resource['name']}" + (f"/{name}" if name else "")

    def new_namespace(self) -> str:
        """Creates a namespace of its own for a test; its name."""
        name = f"test-{next(self._names)}"
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def install_crds(self) -> None:
        """Those of KubeRay, of TrainingRun and of its defaults."""
        for file in kuberay_crds():
            self.install_crd(file.read_text())
        for own in (crd(), *defaults_crds()):
            self.install_crd(own)

    def install_crd(self, crd: Mapping[str, Any] | str) -> None:
        """Applies a CRD, as data or YAML text, and waits until the server serves it."""
        name = (
            next(line.split()[1] for line in crd.splitlines() if line.startswith("  name: "))
            if isinstance(crd, str)
            else crd["metadata"]["name"]
        )
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        options = "?fieldManager=tests&force=true&fieldValidation=Strict"
        spec = self.request("PATCH", path + options, crd, APPLY)["spec"]
        version = f"{spec['group']}/{spec['versions'][-1]['name']}"
        deadline = time.monotonic() + START_SECONDS
        while not self._serves(version, spec["names"]["plural"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API server does not serve {name}")
            time.sleep(0.2)

    def _serves(self, version: str, plural: str) -> bool:
        try:  # not the CRD's conditions: KubeRay's are megabytes, and this is asked often
            self._resources[version] = self.request("GET", f"/apis/{version}")["resources"]
            self.request("GET", f"/apis/{version}/{plural}?limit=1")
        except ApiError:
            return False
        return any(resource["name"] == plural for resource in self._resources[version])


@contextlib.contextmanager
def running_apiserver(**flags: object) -> Iterator[ApiServer]:
    """Starts etcd and kube-apiserver, and ends them again; `flags` are more of kube-apiserver's.

    Raises:
        support.binaries.Unavailable: the binaries cannot be had.
        RuntimeError: they did not start; the text holds the end of their logs.
    """
    binaries = apiserver_binaries()
    with tempfile.TemporaryDirectory(prefix="trainingrun-apiserver-") as name:
        for attempt in (1, 2, 3):  # a free port may be taken by another process before we bind it
            folder = Path(name) / str(attempt)
            folder.mkdir()
            with contextlib.ExitStack() as processes:
                try:
                    server = _start(binaries, folder, processes, flags)
                except RuntimeError:
                    if attempt == 3:
                        raise
                    continue
                version = server.request("GET", "/version")["gitVersion"]
                wanted = os.environ.get("KUBERNETES_VERSION")
                assert not wanted or version == f"v{wanted}", f"not {wanted}, but {version} runs"
                yield server
                return


def _start(
    binaries: Mapping[str, Path],
    folder: Path,
    processes: contextlib.ExitStack,
    flags: Mapping[str, object],
) -> ApiServer:
    client, peer, port = free_ports(3)
    token, etcd = secrets.token_hex(16), f"http://127.0.0.1:{client}"
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    (folder / "service-account.key").write_text(_new_ec_key())
    etcd_process = _spawn(
        processes,
        folder / "etcd.log",
        [str(binaries["etcd"])],
        data_dir=folder / "etcd",
        listen_client_urls=etcd,
        advertise_client_urls=etcd,
        listen_peer_urls=f"http://127.0.0.1:{peer}",
        unsafe_no_fsync="true",
    )
    apiserver_process = _spawn(
        processes,
        folder / "kube-apiserver.log",
        [str(binaries["kube-apiserver"])],
        etcd_servers=etcd,
        cert_dir=folder / "certs",
        bind_address="127.0.0.1",
        advertise_address="127.0.0.1",
        endpoint_reconciler_type="none",  # Kubernetes 1.37 advertises no loopback address
        secure_port=port,
        token_auth_file=folder / "tokens.csv",
        authorization_mode="RBAC",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=folder / "service-account.key",
        service_account_signing_key_file=folder / "service-account.key",
        service_cluster_ip_range="10.0.0.0/24",
        disable_admission_plugins="ServiceAccount",
        allow_privileged="true",
        max_requests_inflight="1000",
        max_mutating_requests_inflight="500",
        **flags,
    )
    ca_file = folder / "certs" / "apiserver.crt"
    url = f"https://127.0.0.1:{port}"
    server = ApiServer(url, token, ca_file, folder / "kubeconfig", etcd)
    deadline = time.monotonic() + START_SECONDS
    while not _ready(server):
        ended = etcd_process.poll() is not None or apiserver_process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise RuntimeError("the API server did not start:\n" + _log_ends(folder))
        time.sleep(0.1)
    server.kubeconfig.write_text(json.dumps(_kubeconfig(server)))
    server.kubeconfig.chmod(0o600)
    return server


def _ready(server: ApiServer) -> bool:
    try:
        server.request("GET", "/readyz")
        # The namespace that everything without one goes to is created later.
        server.request("GET", "/api/v1/namespaces/default")
    except (ApiError, OSError):
        return False
    return True


def _spawn(
    processes: contextlib.ExitStack, log: Path, command: list[str], **flags: object
) -> subprocess.Popen[bytes]:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    output = processes.enter_context(log.open("wb"))
    process = subprocess.Popen(
        command + arguments,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the tests, which then end it in order
    )
    processes.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:  # the API server waits for its watchers; nothing is lost
        process.kill()
        process.wait()


def _kubeconfig(server: ApiServer) -> dict[str, Any]:
    authority = base64.b64encode(server.ca_file.read_bytes()).decode()
    cluster = {"server": server.url, "certificate-authority-data": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": server.token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
    }


def _new_ec_key() -> str:
    """A fresh P-256 private key (RFC 5915, without the optional public key), as PEM."""
    scalar = b"\x00" + secrets.token_bytes(31)  # below the group's order
    der = bytes.fromhex("303102010104 20") + scalar + bytes.fromhex("a00a06082a8648ce3d030107")
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}-----END EC PRIVATE KEY-----\n"


def _log_ends(folder: Path) -> str:
    logs = (folder / name for name in ("etcd.log", "kube-apiserver.log"))
    return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in logs if log.exists())


def _options(dry_run: bool) -> str:
    return "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
