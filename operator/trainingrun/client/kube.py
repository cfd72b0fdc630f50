"""The Kubernetes client of the command line: kubeconfig, synchronous, errors in one sentence."""

import base64
import contextlib
import copy
import logging
import math
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config import incluster_config, kube_config
from kubernetes.config.config_exception import ConfigException

from ..api.errors import RunError
from ..api.v1alpha1 import GROUP, KIND, PLURAL, VERSION
from ..cluster.bounded_json import loads
from ..local.terminal_text import end_of
from ..reconciling import pod_status
from ..reconciling.bookkeeping import Bookkeeping
from ..rendering import names
from ..rendering.defaults import resolved_by_status
from . import object_names
from .errors import (
    ForbiddenError,
    NoLogError,
    NotFoundError,
    NotServedError,
    RefusedError,
    UnreachableError,
)

_ENTRY = re.compile(r"\{.*\}")
_GROUP = f"/apis/{GROUP}/{VERSION}"
_TIMEOUT_S = 30
_PART = 500
"""Objects that are listed at once, as kubectl does."""
_JSON, _MERGE_PATCH, _APPLY_PATCH = (
    f"application/{name}" for name in ("json", "merge-patch+json", "apply-patch+yaml")
)
# A CRD older than this command lacks fields, which the API server would drop with a warning alone.
_STRICT = {"fieldValidation": "Strict"}
_APPLY = {"fieldManager": "trainingrun-submit", **_STRICT}
_OF_HEADERS = "!#$&'*+^`|"
"""What may be in the name of a header beside letters, digits and `_.-~`, and is no escape."""
_CONFLICT = "; change these fields with the tool that set them, or choose another name"
_NOT_SERVED = "404 page not found"
"""All that an API server says of a kind that it does not know; of an object it sends a Status."""
_ELSEWHERE = "does the address in the kubeconfig lead to the API server?"


class Kube:
    """One cluster and one default namespace."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        """Connect as kubectl would.

        Args:
            context: A context of the kubeconfig; default: the current one, and in a pod without a
                kubeconfig the pod's service account.
            namespace: Default: the context's, or the pod's own.

        Raises:
            RunError: There is no usable kubeconfig, or no namespace can have that name.
        """
        self.context = context
        self._connection = _Connection(context)
        default = self._connection.namespace or "default"
        self.namespace = object_names.of_namespace(namespace or default)

    def within(self, namespace: str) -> "Kube":
        """The same cluster, by the same connections, with another default namespace.

        Raises:
            RunError: No namespace can have that name.
        """
        found = copy.copy(self)
        found.namespace = object_names.of_namespace(namespace)
        return found

    @property
    def url(self) -> str:
        """Where the API server is."""
        return str(self._connection.login.client.configuration.host)

    def get(
        self, path: str, timeout_s: float = _TIMEOUT_S, /, *, has: str = "", **query: str
    ) -> dict[str, Any]:
        """What the API server answers at a path; `has` is a field that this must have.

        Raises:
            NotFoundError: There is nothing.
            NotServedError: The API server knows no such kind.
            ForbiddenError: It may not be read.
            RunError: It cannot be read.
        """
        return self._request("GET", path, path, query, timeout_s=timeout_s, has=has)

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
        found = self._request("POST", path, path, body=review, has="status")
        return bool(found["status"].get("allowed"))

    def _request(
        self,
        method: str,
        path: str,
        about: str,
        query: Mapping[str, str] = MappingProxyType({}),
        body: Any = None,
        *,
        kind: str = _JSON,
        timeout_s: float = _TIMEOUT_S,
        after_conflict: str = "",
        has: str = "",
    ) -> dict[str, Any]:
        """What the API server answers; `about` is what an error is about, `has` as of `get`."""
        with _one_sentence(about, after_conflict):
            answer = self._answer(method, path, query, timeout_s, body, kind)
            text = answer.read()
            if not 200 <= answer.status <= 299:
                raise ApiException(http_resp=answer)
        try:
            found = dict(loads(text))
        except (ValueError, TypeError):
            raise RefusedError(
                f"{about}: the answer is not JSON; {_ELSEWHERE}", answer.status
            ) from None
        if has and not isinstance(found.get(has), dict | list):
            raise RefusedError(f"{about}: the answer has no {has}; {_ELSEWHERE}", answer.status)
        return found

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        timeout_s: float | None,
        body: Any = None,
        kind: str = _JSON,
    ) -> Any:
        login = self._connection.login
        answer = login.ask(method, path, query, timeout_s, body, kind)
        if answer.status != 401:
            return answer
        answer.read()
        login = self._connection.renewed(login)
        return login.ask(method, path, query, timeout_s, body, kind)

    def _core(self, kind: str, *rest: str) -> str:
        """The path of objects of the core group in the default namespace."""
        parts = map(object_names.of_object, rest)
        return "/".join(("/api/v1/namespaces", self.namespace, kind, *parts))

    def _on_run(
        self,
        method: str,
        name: str,
        query: Mapping[str, str] = MappingProxyType({}),
        body: Any = None,
        **how: Any,
    ) -> dict[str, Any]:
        object_names.of_object(name, f"a {KIND}")
        path = f"{_GROUP}/namespaces/{self.namespace}/{PLURAL}"
        if method != "POST":
            path += f"/{name}"
        about = f"TrainingRun {name} in namespace {self.namespace}"
        return self._request(method, path, about, query, body, **how)

    def runs(self, everywhere: bool) -> list[dict[str, Any]]:
        """The TrainingRuns of the namespace, or of all of them, each with its defaults."""
        return list(self.each_run(everywhere))

    def each_run(self, everywhere: bool) -> Iterator[dict[str, Any]]:
        """The same one by one: of thousands a part is asked for, and in memory, at a time."""
        within = "" if everywhere else f"/namespaces/{self.namespace}"
        path, query = f"{_GROUP}{within}/{PLURAL}", {"limit": str(_PART)}
        while True:
            found = self._request("GET", path, "TrainingRuns", query, has="items")
            for each in found["items"]:
                yield dict(resolved_by_status(each))
            if not (rest := (found.get("metadata") or {}).get("continue")):
                return
            query["continue"] = rest

    def run(self, name: str) -> dict[str, Any]:
        """One TrainingRun, with what its status says that it has from its defaults.

        Raises:
            NotFoundError: There is none of that name.
            RunError: There can be none, or it cannot be read.
        """
        return dict(resolved_by_status(self._on_run("GET", name, has="metadata")))

    def events(self, run: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The Events about a TrainingRun that the API server still has.

        Those about a former run of its name are left out, where they say which one they are about.

        Raises:
            RunError: The API server refuses it.
        """
        name, uid = run["metadata"]["name"], run["metadata"].get("uid")
        about = f"involvedObject.kind={KIND},involvedObject.name={name}"
        query, what = {"fieldSelector": about}, f"the events of {name}"
        found = self._request("GET", self._core("events"), what, query, has="items")
        return [
            event for event in found["items"] if (event["involvedObject"].get("uid") or uid) == uid
        ]

    def set_suspend(self, name: str, wanted: bool) -> None:
        """Change `spec.suspend` of a TrainingRun.

        Raises:
            RunError: There is none of that name, or the API server refuses the change.
        """
        body = {"spec": {"suspend": wanted}}
        self._on_run("PATCH", name, _STRICT, body, kind=_MERGE_PATCH)

    def delete(self, name: str) -> None:
        """Delete a TrainingRun; Kubernetes deletes what it owns afterwards.

        Raises:
            RunError: There is none of that name, or the API server refuses it.
        """
        self._on_run("DELETE", name)

    def create(self, run: Mapping[str, Any]) -> None:
        """Create a TrainingRun in the default namespace.

        Raises:
            RunError: The API server refuses it, or one of that name is there.
        """
        self._on_run("POST", run["metadata"]["name"], _STRICT, run)

    def apply(self, run: dict[str, Any]) -> None:
        """Create a TrainingRun in this namespace, or change it to what the manifest says.

        Raises:
            RunError: The API server refuses it, or another tool has set a field otherwise.
        """
        name = run["metadata"]["name"]
        self._on_run("PATCH", name, _APPLY, run, kind=_APPLY_PATCH, after_conflict=_CONFLICT)

    def apply_config_map(self, config_map: dict[str, Any]) -> None:
        """Create a ConfigMap in its own namespace, else in this one, or change it.

        Raises:
            RunError: The API server refuses it, or another tool has set a field otherwise.
        """
        metadata = config_map["metadata"]
        name, where = metadata["name"], self.within(metadata.get("namespace") or self.namespace)
        where._request(
            "PATCH",
            where._core("configmaps", name),
            f"ConfigMap {name} in namespace {where.namespace}",
            _APPLY,
            {"apiVersion": "v1", **config_map},
            kind=_APPLY_PATCH,
            after_conflict=_CONFLICT,
        )

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
        query, what = {"labelSelector": labels}, f"the pods of {name}"
        found = self._request("GET", self._core("pods"), what, query, has="items")
        return [
            pod
            for pod in found["items"]
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
            about = "Ray's token cannot be read"
            found = self._request("GET", self._core("secrets", secret), about)
        except NotFoundError:
            raise NotFoundError(
                f"{about}: there is no Secret {secret} in namespace {self.namespace}"
            ) from None
        except ForbiddenError as error:
            missing = (
                f"; ask for the verb get of secrets in namespace {self.namespace}, or of {secret} "
                "alone"
            )
            raise RunError(f"{error}{missing if error.status == 403 else ''}") from None
        try:
            return base64.b64decode((found.get("data") or {})[key], validate=True).decode("ascii")
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
        query = {
            "container": container,
            "tailLines": str(lines),
            "previous": str(previous).lower(),
        }
        tail = b""
        # `limitBytes` would keep the first ones of these lines.
        for piece in self._log(pod, query, _TIMEOUT_S):
            tail = end_of(tail + piece, most)
        return tail.decode(errors="replace")

    def pod_log(
        self,
        pod: Mapping[str, Any],
        *,
        since_s: float | None = None,
        since: str | None = None,
        follow: bool = False,
    ) -> Iterator[str]:
        """What Ray's container of a pod prints: lines that begin with their time.

        Args:
            pod: Of a run.
            since_s: Seconds; older lines are left out. None: all that the kubelet has.
            since: Time of a line of this log, instead of `since_s`; lines of an earlier second
                are left out.
            follow: Whether to go on until the container ends.

        Raises:
            NotFoundError: The pod is gone.
            NoLogError: Its container has not started.
            RunError: The API server refuses it.
        """
        name, role = pod_status.name(pod), pod["metadata"]["labels"].get(names.ROLE_LABEL)
        container = names.HEAD_CONTAINER if role == names.HEAD else names.WORKER_CONTAINER
        query = {"container": container, "timestamps": "true", "follow": str(follow).lower()}
        if since is not None:  # by the node's clock, which this machine's may be behind
            query["sinceTime"] = since
        elif since_s is not None:
            query["sinceSeconds"] = str(max(1, math.ceil(since_s)))
        try:
            rest = b""
            for piece in self._log(name, query, None if follow else _TIMEOUT_S):
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
            if rest:
                yield rest.decode(errors="replace")
        except ForbiddenError as error:
            missing = f"; ask for the verb get of pods/log in namespace {self.namespace}"
            raise RunError(f"{error}{missing if error.status == 403 else ''}") from None
        except RefusedError as error:
            if error.status == 400:  # "container is waiting to start"
                raise NoLogError(str(error)) from None
            raise

    def _log(self, pod: str, query: Mapping[str, str], timeout_s: float | None) -> Iterator[bytes]:
        """The log of a pod's container, piece by piece."""
        with _one_sentence(f"the log of pod {pod}"):
            answer = self._answer("GET", self._core("pods", pod, "log"), query, timeout_s)
            if not 200 <= answer.status <= 299:  # 204: the pod has no node
                answer.read()
                raise ApiException(http_resp=answer)
            yield from answer.response.stream()


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


class _Access(NamedTuple):
    """How this process reaches a cluster; other clients of the process keep their own."""

    settings: client.Configuration
    namespace: str | None
    """The context's, or the pod's own."""
    impersonation: list[tuple[str, str]]
    """Headers of each request, by which the user acts as another one; a name may come again."""
    context: str | None = None
    """Of the kubeconfig; None: it is that of the pod."""


class _Login:
    """What requests are sent with, until the API server refuses it."""

    def __init__(self, access: _Access) -> None:
        # The client's own three retries delay the error when the API server cannot be reached.
        access.settings.retries = False
        # A log that is followed has no timeout, and a load balancer forgets a silent connection.
        access.settings.keep_alive = True
        self.client = client.ApiClient(access.settings)
        self._impersonation = access.impersonation

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        timeout_s: float | None,
        body: Any,
        kind: str,
    ) -> Any:
        """Send a request; the answer, whatever its status."""
        method, url, headers, *rest = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        headers = urllib3.HTTPHeaderDict(headers)  # the client's own has one value of a name
        for name, value in self._impersonation:
            headers.add(name, value)
        return self.client.call_api(method, url, headers, *rest, _request_timeout=timeout_s)


class _Connection:
    """The way to one cluster, which a client and all that are made of it by `within` share."""

    def __init__(self, context: str | None) -> None:
        access = _access(context)
        self.namespace = access.namespace
        # Whoever waits for a run stays in its cluster, also where another context becomes current.
        self._context = access.context
        self._renewing = threading.Lock()
        self.login = _Login(access)

    def renewed(self, refused: _Login) -> _Login:
        """Log in again as the kubeconfig says now; of several threads one does.

        The client itself renews only what says when it expires.

        Raises:
            RunError: It gives no credentials.
        """
        with self._renewing:
            if self.login is refused:
                self.login = _Login(_access(self._context))
            return self.login


def _access(context: str | None) -> _Access:
    """The access that kubectl would have.

    Raises:
        RunError: There is none.
    """
    try:
        return _of_kubeconfig(context)
    except yaml.YAMLError:  # whose text has a line of the file, perhaps the token's
        raise RunError(f"{_kubeconfig()} is not YAML; correct it, or set KUBECONFIG") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{_kubeconfig()} is no kubeconfig ({type(error).__name__}: {error}); correct it, or "
            "set KUBECONFIG"
        ) from None
    except (ConfigException, OSError) as error:
        with contextlib.suppress(ConfigException):
            if context is None:
                settings = client.Configuration()
                config.load_incluster_config(settings)
                account = Path(incluster_config.SERVICE_TOKEN_FILENAME)
                return _Access(settings, account.with_name("namespace").read_text().strip(), [])
        # The client names an entry by all that is in it, a token too.
        reason = _ENTRY.sub("…", " ".join(str(error).split())).rstrip(".")
        raise RunError(
            f"no cluster is configured ({reason}); set KUBECONFIG, or name a --context"
        ) from None


def _of_kubeconfig(context: str | None) -> _Access:
    """The same by the kubeconfig alone, which needs no current context where another is named."""
    files = kube_config.KubeConfigMerger(_kubeconfig())
    if files.config is None:
        raise ConfigException(f"there is no {_kubeconfig() or 'kubeconfig'}")
    # The client's own `load_kube_config` does not say which namespace the context names.
    loader = kube_config.KubeConfigLoader(
        files.config, context, config_base_path=None, config_persister=files.save_changes
    )
    settings = client.Configuration()
    with _plugin_errors() as errors:
        loader.load_and_set(settings)
    chosen = loader.current_context["context"]
    entry = files.config["users"].get_with_name(chosen.get("user"), safe=True)
    user = entry.value["user"] if entry is not None else {}
    if "exec" in user and "BearerToken" not in settings.api_key and not settings.cert_file:
        raise _no_credentials(chosen["user"], user["exec"]["command"], errors)
    name = loader.current_context["name"]
    return _Access(settings, chosen.get("namespace"), _impersonation(user), name)


@contextlib.contextmanager
def _plugin_errors() -> Iterator[list[str]]:
    """What the client logs of a plugin that fails, instead of raising it; nobody else gets it."""
    errors: list[str] = []

    def others(record: logging.LogRecord) -> bool:
        if record.pathname != kube_config.__file__:
            return True
        errors.append(record.getMessage())
        return False

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addFilter(others)
    root.addHandler(handler)  # without any, its `logging.error` sets up that of the process
    try:
        yield errors
    finally:
        root.removeHandler(handler)
        root.removeFilter(others)


def _no_credentials(user: str, command: str, errors: list[str]) -> RunError:
    reason = _ENTRY.sub("…", " ".join(errors[-1].splitlines()[-1:])) if errors else ""
    if "'NoneType'" in reason:  # in a terminal the plugin has said itself what is wrong
        reason = ""
    return RunError(
        f"the command {command}, by which user {user} of {_kubeconfig()} logs in, gives no "
        f"credentials{f' ({reason})' if reason else ''}; log in again as that user"
    )


def _impersonation(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headers by which a user of the kubeconfig acts as another one, as kubectl's.

    Raises:
        RunError: That other one has no name.
        ValueError: A field of it is no text, or no list of texts.
    """
    extra = user.get("as-user-extra") or {}
    fields = {
        "Impersonate-User": [user.get("as") or ""],
        "Impersonate-Uid": [user.get("as-uid") or ""],
        "Impersonate-Group": user.get("as-groups") or [],
        **{
            f"Impersonate-Extra-{quote(key, safe=_OF_HEADERS)}": values or []
            for key, values in extra.items()
        },
    }
    found: list[tuple[str, str]] = []
    for name, values in fields.items():
        if not isinstance(values, list) or not all(
            isinstance(value, str) and value.isprintable() for value in values
        ):
            raise ValueError(f"{name} would be {values!r}")
        # HTTP's client writes Latin-1, and the API server reads UTF-8.
        found += [(name, value.encode().decode("latin-1")) for value in values if value]
    if found and not user.get("as"):
        raise RunError(
            f"a user of {_kubeconfig()} has as-uid, as-groups or as-user-extra without as; name in "
            "as the user to act as, or remove them"
        )
    return found


def _kubeconfig() -> str:
    """Where the kubeconfig is; several files are joined as in KUBECONFIG."""
    return str(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)


@contextlib.contextmanager
def _one_sentence(what: str, after_conflict: str = "") -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status == 404:
            raise _not_found(what, error) from None
        if error.status in (401, 403):
            advice = "; log in to the cluster again" if error.status == 401 else ""
            raise ForbiddenError(f"{what}: {_message(error)}{advice}", error.status) from None
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


def _not_found(what: str, error: ApiException) -> RunError:
    """That there is nothing, which an API server alone can say: a proxy in between knows nothing of
    what is behind it.
    """
    sentence = f"{what}: not found; is the name right, and the operator installed?"
    said = _said(error)
    if said.get("kind") == "Status" and said.get("reason") == "NotFound":
        return NotFoundError(sentence)
    if (error.body or "").strip() == _NOT_SERVED:
        return NotServedError(sentence, 404)
    return RefusedError(f"{what}: {_message(error)}; {_ELSEWHERE}", 404)


def _said(error: ApiException) -> Mapping[str, Any]:
    """The answer as JSON; empty where it is none, as of a proxy."""
    with contextlib.suppress(ValueError, TypeError):
        return dict(loads((error.body or "").encode()))
    return {}


def _message(error: ApiException) -> str:
    said = _said(error).get("message") or f"{error.status} {error.reason}"
    return " ".join(str(said).split())
