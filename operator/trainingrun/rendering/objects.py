"""The objects of a run: the RayJob of each attempt, and what stays until the run is deleted.

A pod is `templates/pod.yaml.j2`, then the user's podTemplate, then what follows from both.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainingrun_protocol.contract import (
    CLAIMS_FOLDER,
    NOTICE_ENV,
    PROGRESS_PORT,
    TOKEN_FOLDER,
    WORKER_RESOURCE,
)

from ..api.pods_spec import CLAIM_VOLUME, HEAD_PORTS, WORKER_PORTS
from ..api.quantities import times, whole
from ..api.training_spec import ScriptSource
from ..api.v1alpha1 import TrainingRun
from . import environments, names, platforms, scheduling
from .contracts import node_cpus, ray_devices, script_path, worker_cpus
from .merge import merge, merge_pod_template
from .platforms import EXIT_SECONDS, KUBERAY_NAMESPACES, RenderSettings
from .scheduling import Placement
from .templating import render

_HOOK = ["trainingrun-prestop"]
"""Passes the notice to the training, and ends once its checkpoint is saved."""

_BOTH_HOOKS = 'trainingrun-prestop; exec "$@"'
_USERS_PATH = "TRAININGRUN_USERS_PYTHONPATH"
_KUBERNETES_GRACE_S = 30
"""Of a pod that names no grace period."""

_LOST_NODE_TOLERATION_S = 30
"""How long pods stay on a node that is not ready or unreachable; Kubernetes' own default is 300."""

_LEFT_TO_KUBERAY_S = 600
"""After these seconds KubeRay frees the pods of an ended attempt, if no operator has."""

_MINIMUM_OBJECT_STORE = 80 * 2**20
"""Bytes; Ray refuses to start with less than 75 MiB."""


def attempt(
    run: TrainingRun,
    number: int,
    settings: RenderSettings,
    excluded_hostnames: tuple[str, ...] = (),
    placement: Placement | None = None,
) -> dict[str, Any]:
    """The RayJob of attempt `number`, whose pods exclude the nodes in `excluded_hostnames`.

    Args:
        run: The run.
        number: Of the attempt.
        settings: Of the cluster.
        excluded_hostnames: Their kubernetes.io/hostname.
        placement: Which nodes its workers go to. Default: the first choice of the spec.

    Raises:
        ValueError: the settings name a platform that is not known.
    """
    queue = scheduling.queueing(run, number)
    job = render(
        "rayjob",
        name=names.ray_job_name(run, number),
        namespace=run.metadata.namespace,
        labels={**names.labels(run, number), **queue.job_labels},
        suspends=queue.suspends,
        owner=names.owner(run),
        ray_version=settings.ray_version,
        ray_auth=settings.ray_auth,
        ttl_seconds=_LEFT_TO_KUBERAY_S + run.spec.failures.keep_failed_pods_seconds,
        head_start=_head_start(run),
        worker_group=names.WORKER_GROUP,
        worker_pods=run.spec.worker_pods + run.spec.workers.standby,
        minimum_worker_pods=run.spec.minimum_worker_pods,
        worker_start=_worker_start(run, settings),
    )
    # Not by the template: they would be read as YAML a second time.
    cluster = job["spec"]["rayClusterSpec"]
    cluster["headGroupSpec"]["template"] = _head(run, number, settings, excluded_hostnames)
    (workers,) = cluster["workerGroupSpecs"]
    chosen = placement or scheduling.first_placement(run)
    workers["template"] = _worker(run, number, settings, excluded_hostnames, chosen)
    if settings.history_collector:
        cluster["historyServerOptions"] = {"collectorOptions": dict(settings.history_collector)}
    return job


def worker_nodes(
    run: TrainingRun,
    number: int,
    settings: RenderSettings,
    placement: Placement,
    live: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part of the workers' pod template that selects nodes, for a placement: its label, and of
    the spec `affinity`, `nodeSelector` and `tolerations`, the user's podTemplate included.

    Args:
        run: The run.
        number: Of the attempt.
        settings: Of the cluster.
        placement: Which nodes its workers go to.
        live: The attempt's RayCluster, to keep what others have added there. Default: there is
            none.
    """
    spec = _selecting(run, number, settings, placement)
    if live is not None:
        known = scheduling.placement_of_label(run, scheduling.placement_of_cluster(live))
        former = _selecting(run, number, settings, known) if known else None
        spec = scheduling.replaced(scheduling.worker_template(live).get("spec") or {}, former, spec)
    return {"metadata": {"labels": {names.PLACEMENT_LABEL: placement.label}}, "spec": spec}


def _selecting(
    run: TrainingRun, number: int, settings: RenderSettings, placement: Placement
) -> dict[str, Any]:
    """The fields of a worker's pod spec that select nodes."""
    pod = _worker(run, number, settings, (), placement)
    fields: dict[str, Any] = {"affinity": {}, "nodeSelector": {}, "tolerations": []}
    return {field: pod["spec"].get(field) or empty for field, empty in fields.items()}


def peer_as_stored(peer: Mapping[str, Any]) -> dict[str, Any]:
    """A peer of a NetworkPolicy as the API server gives it back: without the empty fields of a
    selector and of a block, for which it would be restored for ever. A selector that is empty
    itself selects all, and stays.
    """
    return {name: _without_empty(part) for name, part in peer.items()}


def _without_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        fields = ((name, _without_empty(item)) for name, item in value.items())
        return {name: item for name, item in fields if item not in ({}, [], None)}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def support_objects(run: TrainingRun, settings: RenderSettings) -> list[dict[str, Any]]:
    """The run's NetworkPolicy; apply it before the first attempt, so that no pod runs without."""
    return [
        render(
            "networkpolicy",
            name=names.network_policy_name(run),
            namespace=run.metadata.namespace,
            labels=names.labels(run),
            owner=names.owner(run),
            pods=names.selector(run),
            operator_namespace=settings.operator_namespace,
            operator_component=names.MANAGER,
            kuberay_namespaces=settings.kuberay_namespaces or KUBERAY_NAMESPACES,
            progress_port=PROGRESS_PORT,
            metrics_from=[peer_as_stored(peer) for peer in settings.metrics_from],
        )
    ]


def token_secret(run: TrainingRun, key: str) -> dict[str, Any]:
    """The Secret for the run's bearer token of the operator's key of that name.

    Without its data: only the controller has it.
    """
    return _secret(run, names.token_secret_name(run, key))


def renewed_token_secret(run: TrainingRun, lost_key: str) -> dict[str, Any]:
    """The Secret by which a running head, whose token is of a lost key, gets one that fits.

    The head mounts it where it exists; the kubelet brings it within a minute or two.
    """
    return _secret(run, names.renewed_token_secret_name(run, lost_key))


def _secret(run: TrainingRun, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": run.metadata.namespace,
            "labels": names.labels(run),
            "ownerReferences": [names.owner(run)],
        },
        "type": "Opaque",
        # Its name identifies the key and the run of the token, so that it is never changed.
        "immutable": True,
    }


def _head(
    run: TrainingRun, number: int, settings: RenderSettings, excluded_hostnames: tuple[str, ...]
) -> dict[str, Any]:
    """The head's pod template, on on-demand capacity."""
    platform = platforms.load(settings.platform)
    resources = run.spec.head.resources
    return _pod(
        run,
        number,
        settings,
        role=names.HEAD,
        container=names.HEAD_CONTAINER,
        annotations=platform.head_annotations,
        ports=HEAD_PORTS,
        env=environments.head(run, number, settings),
        tokens={
            "folder": TOKEN_FOLDER,
            "key": names.TOKEN_KEY,
            "secret": names.token_secret_name(run, settings.token_key),
            "renewed": names.renewed_token_secret_name(run, settings.token_key),
        },
        own_labels={names.TOKEN_KEY_LABEL: settings.token_key},
        resources={"cpu": resources.cpu, "memory": resources.memory},
        shared_memory=_shared_memory(resources.memory, None),
        node_selector={},
        affinity=scheduling.head_affinity(platform, excluded_hostnames),
        tolerations=[],
        spread=[],
        overlay=run.spec.head.pod_template,
    )


def _worker(
    run: TrainingRun,
    number: int,
    settings: RenderSettings,
    excluded_hostnames: tuple[str, ...],
    placement: Placement,
) -> dict[str, Any]:
    """A worker pod's template: with the resources of all workers in the pod."""
    platform = platforms.load(settings.platform)
    workers = run.spec.workers
    resources = workers.pod_resources
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    if placement.capacity != "OnDemand":
        tolerations += platform.spot.tolerations
    if workers.accelerator:
        device = platform.accelerators[workers.accelerator.kind]
        resources[device.resource] = str(workers.accelerator.count * workers.per_pod)
        tolerations += device.tolerations
        for product in (placement.product, *workers.accelerator.choices):
            if product is not None:
                node_selector[device.product_label] = product
                break
    return _pod(
        run,
        number,
        settings,
        role=names.WORKER,
        container=names.WORKER_CONTAINER,
        annotations={},
        ports=WORKER_PORTS,
        env=environments.worker(run, number, settings),
        tokens=None,
        own_labels={names.PLACEMENT_LABEL: placement.label} if scheduling.can_change(run) else {},
        resources=resources,
        shared_memory=_workers_shared_memory(run),
        node_selector=node_selector,
        affinity=scheduling.worker_affinity(run, number, platform, excluded_hostnames, placement),
        tolerations=tolerations,
        spread=scheduling.spread(run, number),
        overlay=workers.pod_template,
    )


def _head_start(run: TrainingRun) -> dict[str, str]:
    """`ray start` parameters of the head. No CPU: nothing of the training runs there."""
    size = _shared_memory(run.spec.head.resources.memory, None)
    return {
        "num-cpus": "0",
        "dashboard-host": "0.0.0.0",  # noqa: S104 - the NetworkPolicy and Ray's token guard it
        "object-store-memory": _object_store(size),
    }


def _worker_start(run: TrainingRun, settings: RenderSettings) -> dict[str, str]:
    """`ray start` parameters of a worker pod; KubeRay takes its memory from the limit."""
    workers = run.spec.workers
    params = {
        "num-cpus": str(node_cpus(worker_cpus(run) * workers.per_pod, workers.resources.data_cpus)),
        "object-store-memory": _object_store(_workers_shared_memory(run)),
        # It would send every line that a rank prints to the head. The runtime follows the files.
        # Not "false": KubeRay 1.6 leaves the option out then (`convertParamMap` in its pod.go).
        "include-log-monitor": "0",
    }
    each = {**ray_devices(run, settings), WORKER_RESOURCE: 1}
    custom = {resource: count * workers.per_pod for resource, count in each.items()}
    if "GPU" in custom:
        params["num-gpus"] = str(custom.pop("GPU"))
    # Quoted for the shell, as KubeRay itself writes it.
    params["resources"] = f"'{json.dumps(custom)}'"
    return params


def _shared_memory(memory: str, wanted: str | None) -> str:
    """Size of /dev/shm: the requested one, else a quarter of the memory that it is taken from."""
    return wanted or str(whole(memory) // 4)


def _workers_shared_memory(run: TrainingRun) -> str:
    each, number = run.spec.workers.resources, run.spec.workers.per_pod
    wanted = times(each.shared_memory, number) if each.shared_memory else None
    return _shared_memory(times(each.memory, number), wanted)


def _object_store(shared: str) -> str:
    # Half of /dev/shm, the rest is for data loaders. Ray's own default, 30 % of the memory, may be
    # more than all of it, and Ray then keeps its objects on disk.
    return str(max(_MINIMUM_OBJECT_STORE, whole(shared) // 2))


def _pod(
    run: TrainingRun,
    number: int,
    settings: RenderSettings,
    *,
    role: str,
    container: str,
    overlay: Mapping[str, Any],
    own_labels: Mapping[str, str],
    **values: Any,
) -> dict[str, Any]:
    queue = scheduling.queueing(run, number)
    labels = {**names.labels(run, number, role), **own_labels}
    script = run.spec.training.any_script
    rendered = render(
        "pod",
        role=role,
        container=container,
        labels={**labels, **queue.pod_labels},
        image=run.spec.image or settings.image,
        image_pull_policy=settings.image_pull_policy,
        grace_s=platforms.load(settings.platform).termination_grace_period_seconds,
        priority_class=run.spec.scheduling.priority_class_name,
        scheduler=queue.scheduler,
        security_context=settings.pod_security_context,
        env_from=environments.credentials(run),
        lost_node_s=_LOST_NODE_TOLERATION_S,
        script_config_map=script.config_map if script else None,
        script_folder=names.SCRIPT_FOLDER,
        **values,
    )
    merged = merge_pod_template(rendered, names.inherited_metadata(run))
    # Again: the run may have a label of its own that is called as the queue's.
    merged = merge(merged, {"metadata": {"labels": queue.pod_labels}})
    templates = (_common(run, role), overlay)
    for template in templates:
        merged = merge_pod_template(merged, template)
    _let_be_privileged(merged, container, templates)
    # Not even the user's podTemplate changes these: by the labels the operator finds the pod and
    # the NetworkPolicy guards it, and without the annotation KubeRay replaces the image's entry.
    own = {"labels": labels, "annotations": {"ray.io/overwrite-container-cmd": "true"}}
    merged = merge(merged, {"metadata": own})
    _complete(merged, container, _import_folder(script), run.spec.storage.claim)
    return merged


def _import_folder(script: ScriptSource | None) -> str | None:
    """Where the modules beside a script are; None where Ray sets it, as it unpacks the code."""
    path = script_path(script) if script else None
    # Whatever the script imports lies beside it, and workers unpickle by import.
    return str(path.parent) if path and path.is_absolute() else None


def _common(run: TrainingRun, role: str) -> Mapping[str, Any]:
    """The podTemplate of all pods, without the Ray container of the other role.

    So that one template can name both: added to the other pods, it would have no image.
    """
    template = run.spec.pod_template
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(containers, list):
        return template
    other = names.WORKER_CONTAINER if role == names.HEAD else names.HEAD_CONTAINER
    kept = [
        found
        for found in containers
        if not isinstance(found, Mapping) or found.get("name") != other
    ]
    return {**template, "spec": {**spec, "containers": kept}}


def _let_be_privileged(
    pod: Mapping[str, Any], container: str, templates: Sequence[Mapping[str, Any]]
) -> None:
    """Take out what is rendered of privilege escalation where a container is to be privileged.

    Kubernetes refuses `allowPrivilegeEscalation: false` beside `privileged: true`.

    Args:
        pod: The template after the merge.
        container: Name of Ray's container.
        templates: The podTemplates that were merged; what one of them says of it stays.
    """
    field = "allowPrivilegeEscalation"
    if any(field in own for each in templates for own in _security_contexts(each, container)):
        return
    for merged in _security_contexts(pod, container):
        if merged.get("privileged") is True:
            merged.pop(field, None)


def _security_contexts(template: Mapping[str, Any], container: str) -> Iterator[dict[str, Any]]:
    """Those of the containers of a name, at most one unless the API server refuses the pod."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    for found in containers if isinstance(containers, list) else ():
        if isinstance(found, Mapping) and found.get("name") == container:
            context = found.get("securityContext")
            if isinstance(context, dict):
                yield context


def _complete(
    pod: dict[str, Any], container: str, import_folder: str | None, claim: str | None
) -> None:
    """Add what follows from a pod as it is after the merge with the user's podTemplate.

    Its preStop hook, how long that hook may wait, where Python finds modules, and the claim:
    rendered before the merge, a podTemplate would replace them, or what they rest on, without a
    word.

    Args:
        pod: The template; what has the wrong shape is left to the API server.
        container: Name of Ray's container.
        import_folder: Where the script's own modules are; None: Ray finds them.
        claim: The PersistentVolumeClaim with the run's folder; None: there is none.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    if claim is not None:
        _add_volume(spec, claim)
    containers = spec.get("containers")
    for found in containers if isinstance(containers, list) else ():
        if not isinstance(found, dict) or found.get("name") != container:
            continue
        _add_hook(found)
        if claim is not None:
            mounts = found.get("volumeMounts") or []
            mount = {"name": CLAIM_VOLUME, "mountPath": f"{CLAIMS_FOLDER}/{claim}"}
            found["volumeMounts"] = [*mounts, mount]
        env = found.get("env")
        if isinstance(env, list):
            _add_notice(env, spec)
            if import_folder is not None:
                _add_import_folder(env, import_folder)


def _add_volume(spec: dict[str, Any], claim: str) -> None:
    source = {"persistentVolumeClaim": {"claimName": claim}}
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": CLAIM_VOLUME, **source}]
    security = spec.get("securityContext")
    if isinstance(security, Mapping) and "fsGroup" in security:
        # The kubelet's default is to change the group of every file, for each pod that begins.
        spec["securityContext"] = {"fsGroupChangePolicy": "OnRootMismatch", **security}


def _add_hook(container: dict[str, Any]) -> None:
    lifecycle = container.setdefault("lifecycle", {})
    if not isinstance(lifecycle, dict):
        return
    wanted = lifecycle.get("preStop")
    command = _command(wanted) if isinstance(wanted, Mapping) else []
    if command:
        # The user's hook last: it may end what the checkpoint goes through, such as a mesh's proxy.
        both = ["bash", "-c", _BOTH_HOOKS, "preStop", *command]
        lifecycle["preStop"] = {"exec": {"command": both}}
    else:
        lifecycle["preStop"] = {"exec": {"command": _HOOK}}


def _command(hook: Mapping[str, Any]) -> list[str]:
    run, sleep = hook.get("exec"), hook.get("sleep")
    if isinstance(run, Mapping) and isinstance(run.get("command"), list):
        return [str(part) for part in run["command"]]
    if isinstance(sleep, Mapping) and "seconds" in sleep:
        return ["sleep", str(sleep["seconds"])]
    return []


def _add_notice(env: list[Any], spec: Mapping[str, Any]) -> None:
    grace_s = spec.get("terminationGracePeriodSeconds")
    left_s = (grace_s if isinstance(grace_s, int) else _KUBERNETES_GRACE_S) - EXIT_SECONDS
    env.append({"name": NOTICE_ENV, "value": str(max(left_s, 0))})


def _add_import_folder(env: list[Any], folder: str) -> None:
    """In front of the user's own $PYTHONPATH, as Python puts a script's folder."""
    own: list[dict[str, Any]] = []
    named = (isinstance(each, Mapping) and each.get("name") == "PYTHONPATH" for each in env)
    place = next((at for at, found in enumerate(named) if found), len(env))
    if place < len(env) and "valueFrom" in env[place]:
        own = [{**env[place], "name": _USERS_PATH}]
        folder = f"{folder}:$({_USERS_PATH})"
    elif place < len(env):
        folder = ":".join(filter(None, (folder, env[place].get("value"))))
    # At its place: a variable behind it may name it.
    env[place : place + 1] = [*own, {"name": "PYTHONPATH", "value": folder}]
