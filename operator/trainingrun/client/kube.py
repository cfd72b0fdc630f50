"""The Kubernetes client of the command line: kubeconfig, synchronous, errors in one sentence."""

import base64
import contextlib
import copy
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config import incluster_config
from kubernetes.config.config_exception import ConfigException

from ..api.errors import RunError
from ..api.v1alpha1 import GROUP, KIND, PLURAL, VERSION
from ..cluster.bounded_json import loads, shallow
from ..local.terminal_text import end_of
from ..reconciling import pod_status
from ..reconciling.bookkeeping import Bookkeeping
from ..rendering import names
from ..rendering.defaults import resolved_by_status
from .errors import NotFoundError, UnreachableError

_TIMEOUT_S = 30
_PART = 500
"""Objects that are listed at once, as kubectl does."""
_RUNS = {"group": GROUP, "version": VERSION, "plural": PLURAL, "_request_timeout": _TIMEOUT_S}
# A CRD older than this command lacks fields, which the API server would drop with a warning alone.
_FIELD_VALIDATION = "Strict"
_APPLY = {
    "field_manager": "trainingrun-submit",
    "field_validation": _FIELD_VALIDATION,
    "_content_type": "application/apply-patch+yaml",
}
_CONFLICT = "; change these fields with the tool that set them, or choose another name"


class ForbiddenError(RunError):
    """The API server answers 401 or 403: what was asked for stays unknown."""


class RefusedError(RunError):
    """The API server answers with an error.

    Args:
        sentence: What it says.
        status: The answer's HTTP status.
    """

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class NoLogError(RunError):
    """A container has no log yet."""


class Kube:
    """One cluster and one default namespace."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        """Connect as kubectl would.

        Args:
            context: A context of the kubeconfig; default: the current one, and in a pod without a
                kubeconfig the pod's service account.
            namespace: Default: the context's, or the pod's own.

        Raises:
            RunError: There is no usable kubeconfig.
        """
        self.context = context
        own = _configure(context)
        self.namespace: str = namespace or own or "default"
        settings = client.Configuration.get_default_copy()
        # The client's own three retries delay the error when the API server cannot be reached.
        settings.retries = False
        self._client = _Client(settings)
        self._custom = client.CustomObjectsApi(self._client)
        self._core = client.CoreV1Api(self._client)

    def within(self, namespace: str) -> "Kube":
        """The same cluster, by the same connections, with another default namespace."""
        found = copy.copy(self)
        found.namespace = namespace
        return found

    @property
    def url(self) -> str:
        """Where the API server is."""
        return str(self._client.configuration.host)

    def get(self, path: str, timeout_s: float = _TIMEOUT_S, /, **query: str) -> dict[str, Any]:
        """What the API server answers at a path.

        Raises:
            NotFoundError: There is nothing.
            ForbiddenError: It may not be read.
            RunError: It cannot be read.
        """
        return self._request("GET", path, query, None, timeout_s)

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Whether this user has a right in the default namespace.

        Args:
            verb: Such as `create`.
            group: API group; "": the core.
            resource: Such as `pods`, or `pods/log`.

        Raises:
            RunError: The API server does not say.
        """
        name, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": name, "subresource": sub}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace, **asked}},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self._request("POST", path, {}, review, _TIMEOUT_S)["status"]["allowed"])

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: Any, timeout_s: float
    ) -> dict[str, Any]:
        request = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        with _one_sentence(path):
            answer = self._client.call_api(*request, _request_timeout=timeout_s)
            text = answer.read()
            if not 200 <= answer.status <= 299:
                raise ApiException(http_resp=answer)
        return dict(loads(text))

    def runs(self, everywhere: bool) -> list[dict[str, Any]]:
        """The TrainingRuns of the namespace, or of all of them, each with its defaults."""
        return list(self.each_run(everywhere))

    def each_run(self, everywhere: bool) -> Iterator[dict[str, Any]]:
        """The same one by one: of thousands a part is asked for, and in memory, at a time."""
        more: dict[str, str] = {}
        while True:
            with _one_sentence("TrainingRuns"):
                if everywhere:
                    found = self._custom.list_cluster_custom_object(limit=_PART, **more, **_RUNS)
                else:
                    found = self._custom.list_namespaced_custom_object(
                        namespace=self.namespace, limit=_PART, **more, **_RUNS
                    )
            for each in found["items"]:
                yield dict(resolved_by_status(each))
            if not (rest := found.get("metadata", {}).get("continue")):
                return
            more = {"_continue": rest}

    def run(self, name: str) -> dict[str, Any]:
        """One TrainingRun, with what its status says that it has from its defaults.

        Raises:
            NotFoundError: There is none of that name.
        """
        with self._about(name):
            found = self._custom.get_namespaced_custom_object(
                namespace=self.namespace, name=name, **_RUNS
            )
        return dict(resolved_by_status(found))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The Events about a TrainingRun that the API server still has.

        Raises:
            RunError: The API server refuses it.
        """
        about = f"involvedObject.kind={KIND},involvedObject.name={name}"
        with _one_sentence(f"the events of {name}"):
            found = self._core.list_namespaced_event(
                self.namespace, field_selector=about, _request_timeout=_TIMEOUT_S
            )
        return list(self._client.sanitize_for_serialization(found)["items"])

    def set_suspend(self, name: str, wanted: bool) -> None:
        """Change `spec.suspend` of a TrainingRun.

        Raises:
            RunError: There is none of that name, or the API server refuses the change.
        """
        with self._about(name):
            self._custom.patch_namespaced_custom_object(
                namespace=self.namespace,
                name=name,
                body={"spec": {"suspend": wanted}},
                field_validation=_FIELD_VALIDATION,
                _content_type="application/merge-patch+json",
                **_RUNS,
            )

    def delete(self, name: str) -> None:
        """Delete a TrainingRun; Kubernetes deletes what it owns afterwards.

        Raises:
            RunError: There is none of that name, or the API server refuses it.
        """
        with self._about(name):
            self._custom.delete_namespaced_custom_object(
                namespace=self.namespace, name=name, **_RUNS
            )

    def create(self, run: Mapping[str, Any]) -> None:
        """Create a TrainingRun in the default namespace.

        Raises:
            RunError: The API server refuses it, or one of that name is there.
        """
        with self._about(run["metadata"]["name"]):
            self._custom.create_namespaced_custom_object(
                namespace=self.namespace, body=run, field_validation=_FIELD_VALIDATION, **_RUNS
            )

    def apply(self, run: dict[str, Any]) -> None:
        """Create a TrainingRun in this namespace, or change it to what the manifest says.

        Raises:
            RunError: The API server refuses it, or another tool has set a field otherwise.
        """
        name = run["metadata"]["name"]
        with self._about(name, _CONFLICT):
            self._custom.patch_namespaced_custom_object(
                namespace=self.namespace, name=name, body=run, **_APPLY, **_RUNS
            )

    def apply_config_map(self, config_map: dict[str, Any]) -> None:
        """Create a ConfigMap in its own namespace, else in this one, or change it.

        Raises:
            RunError: The API server refuses it, or another tool has set a field otherwise.
        """
        metadata = config_map["metadata"]
        name, namespace = metadata["name"], metadata.get("namespace") or self.namespace
        with _one_sentence(f"ConfigMap {name} in namespace {namespace}", _CONFLICT):
            self._core.patch_namespaced_config_map(
                name,
                namespace,
                {"apiVersion": "v1", **config_map},
                _request_timeout=_TIMEOUT_S,
                **_APPLY,
            )

    def _about(self, name: str, after_conflict: str = "") -> AbstractContextManager[None]:
        what = f"TrainingRun {name} in namespace {self.namespace}"
        return _one_sentence(what, after_conflict)

    def head(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The head pod of a TrainingRun: the one that the operator knows by KubeRay's status.

        Whoever creates a pod writes its labels, its owner and the name of the Secret in it.

        Raises:
            NotFoundError: It has none now.
        """
        known = _seen(run).head
        for pod in self.pods(run, names.HEAD):
            if known and pod_status.uid(pod) == known:
                return pod
        raise NotFoundError(
            f"{run['metadata']['name']} has no head pod now: it has not started, or it has "
            "ended and its log was deleted with the pod"
        )

    def pods(self, run: Mapping[str, Any], role: str = "") -> list[dict[str, Any]]:
        """The pods of a TrainingRun's RayCluster, of one role or of both.

        They are controlled by the RayCluster that the operator found by the chain of owners, and
        whose UID is in the status: whoever may create pods can label one like a run's.
        """
        name = run["metadata"]["name"]
        ray_cluster = _seen(run).ray_cluster
        labels = f"{names.RUN_LABEL}={name}" + (f",{names.ROLE_LABEL}={role}" if role else "")
        with _one_sentence(f"the pods of {name}"):
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=labels, _request_timeout=_TIMEOUT_S
            )
        return [
            pod
            for pod in self._client.sanitize_for_serialization(found)["items"]
            if ray_cluster and pod_status.controller_uid(pod, "RayCluster") == ray_cluster
        ]

    def ray_token(self, head: Mapping[str, Any]) -> str | None:
        """The token of the Ray of a head pod; None: it needs none.

        Raises:
            RunError: It may not be read.
        """
        reference = _token_reference(head)
        if reference is None:
            return None
        secret, key = reference["name"], reference["key"]
        try:
            found = self._core.read_namespaced_secret(
                secret, self.namespace, _request_timeout=_TIMEOUT_S
            )
        except ApiException as error:
            if not error.status:
                raise _unreachable(error) from None
            missing = (
                f"; ask for the verb get of secrets in namespace {self.namespace}, or of {secret} "
                "alone"
            )
            advice = missing if error.status == 403 else ""
            raise RunError(f"Ray's token cannot be read: {_message(error)}{advice}") from None
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(error) from None
        try:
            return base64.b64decode((found.data or {})[key], validate=True).decode("ascii")
        except (KeyError, ValueError):
            raise RunError(f"Secret {secret} holds no usable {key}") from None

    def log_tail(self, pod: str, container: str, lines: int, most: int, previous: bool) -> str:
        """The last lines of what a container prints.

        Args:
            pod: Name of the pod.
            container: Name of the container.
            lines: How many.
            most: How many bytes.
            previous: Those of the container before its last restart.

        Raises:
            RunError: They cannot be read.
        """
        tail = b""
        with _one_sentence(f"log of pod {pod}"):
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                tail_lines=lines,
                previous=previous,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            # `limitBytes` would keep the first ones of these lines.
            for piece in answer.stream():
                tail = end_of(tail + piece, most)
        return tail.decode(errors="replace")

    def pod_log(
        self,
        pod: Mapping[str, Any],
        *,
        since_s: float | None = None,
        follow: bool = False,
    ) -> Iterator[str]:
        """What Ray's container of a pod prints: lines that begin with their time.

        Args:
            pod: Of a run.
            since_s: Seconds; older lines are left out. None: all that the kubelet has.
            follow: Whether to go on until the container ends.

        Raises:
            NotFoundError: The pod is gone.
            NoLogError: Its container has not started.
            RunError: The API server refuses it.
        """
        name, role = pod_status.name(pod), pod["metadata"]["labels"].get(names.ROLE_LABEL)
        container = names.HEAD_CONTAINER if role == names.HEAD else names.WORKER_CONTAINER
        since = {} if since_s is None else {"since_seconds": max(1, math.ceil(since_s))}
        try:
            with _one_sentence(f"the log of pod {name}"):
                answer = self._core.read_namespaced_pod_log(
                    name,
                    self.namespace,
                    container=container,
                    timestamps=True,
                    follow=follow,
                    _preload_content=False,
                    _request_timeout=None if follow else _TIMEOUT_S,
                    **since,
                )
                rest = b""
                for piece in answer.stream():
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from (line.decode(errors="replace") for line in whole)
                if rest:
                    yield rest.decode(errors="replace")
        except ForbiddenError as error:
            raise RunError(
                f"{error}; ask for the verb get of pods/log in namespace {self.namespace}"
            ) from None
        except RefusedError as error:
            if error.status == 400:  # "container is waiting to start"
                raise NoLogError(str(error)) from None
            raise


def _seen(run: Mapping[str, Any]) -> Bookkeeping:
    return Bookkeeping.read((run.get("status") or {}).get("seen") or {})


def _token_reference(head: Mapping[str, Any]) -> Mapping[str, str] | None:
    """What KubeRay has put into the head's environment."""
    for container in head["spec"]["containers"]:
        for variable in container.get("env") or []:
            source = (variable.get("valueFrom") or {}).get("secretKeyRef")
            if variable["name"] == "RAY_AUTH_TOKEN" and source:
                found: Mapping[str, str] = source
                return found
    return None


def _configure(context: str | None) -> str | None:
    """Sets the client up as kubectl would; the namespace that this names."""
    try:
        contexts, current = config.list_kube_config_contexts()
        config.load_kube_config(context=context)
    except (ConfigException, OSError) as error:
        with contextlib.suppress(ConfigException):
            if context is None:
                config.load_incluster_config()
                account = Path(incluster_config.SERVICE_TOKEN_FILENAME)
                return account.with_name("namespace").read_text().strip()
        reason = " ".join(str(error).split()).rstrip(".")
        raise RunError(
            f"no cluster is configured ({reason}); set KUBECONFIG, or name a --context"
        ) from None
    chosen = next((each for each in contexts if each["name"] == context), current)
    namespace: str | None = chosen["context"].get("namespace")
    return namespace


class _Client(client.ApiClient):  # type: ignore[misc]  # the library has no types
    """Lists the runs of a namespace whatever somebody has nested in one of them."""

    def deserialize(self, response_text: str, response_type: str, content_type: str | None) -> Any:
        text = shallow(response_text.encode()).decode()
        return super().deserialize(text, response_type, content_type)


@contextlib.contextmanager
def _one_sentence(what: str, after_conflict: str = "") -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status == 404:
            raise NotFoundError(
                f"{what}: not found; is the name right, and the operator installed?"
            ) from None
        if error.status in (401, 403):
            raise ForbiddenError(f"{what}: {_message(error)}") from None
        if not error.status:
            raise _unreachable(error) from None
        advice = after_conflict if error.status == 409 else ""
        raise RefusedError(f"{what}: {_message(error)}{advice}", error.status) from None
    except urllib3.exceptions.HTTPError as error:
        raise _unreachable(error) from None


def _unreachable(error: urllib3.exceptions.HTTPError | ApiException) -> UnreachableError:
    # An ApiException without a status is how the client tells of an error of TLS.
    reason = " ".join(str(getattr(error, "reason", None) or error).split())
    return UnreachableError(f"the cluster does not answer: {reason}")


def _message(error: ApiException) -> str:
    with contextlib.suppress(ValueError, TypeError):
        return " ".join(str(json.loads(error.body)["message"]).split())
    return f"{error.status} {error.reason}".strip()
