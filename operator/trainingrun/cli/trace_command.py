"""`trace`: where the time of one start, and of each recovery, of a run went."""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.errors import RunError
from ..api.v1alpha1 import KIND
from ..client.errors import NotFoundError, NotServedError
from ..client.places import opened
from ..client.sources import Cluster, Source
from ..local.terminal_text import plain, table, terminal_width
from ..reconciling import pod_status
from ..rendering import names
from .common import Endpoint, NameOrUri, Trial
from .errors import CliError, say
from .report_command import write_new
from .result_commands import place_in
from .sources import source_of, taking

if TYPE_CHECKING:
    from trainingrun_runtime.report_page.traces import Span, Trace

    from ..client.kube import Kube

Object = Mapping[str, Any]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(trace)


@taking(source_of)
def trace(
    source: Source,
    name: NameOrUri,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="Each of the newest 50, not the latest ones alone.")
    ] = False,
    chrome: Annotated[
        Path | None,
        typer.Option(help="File to write all of them to, for Perfetto or chrome://tracing."),
    ] = None,
    trial: Trial = None,
    endpoint: Endpoint = None,
) -> None:
    """Print where the time of the latest start and recovery went, by phase and by process."""
    place = place_in(source, name, trial, endpoint)
    with opened(place, say) as bucket:
        from trainingrun_runtime.report_page import traces
        from trainingrun_runtime.store import start_traces

        found = traces.of(start_traces.read(bucket), traces.began_of(place.run))
        root = bucket.root
    if not found:
        raise CliError(f"{root} has no trace: its first step is not done, or its image is older")
    run = place.run
    if isinstance(source, Cluster) and run is not None and not run["spec"].get("sweep"):
        found = list(_with_cluster(found, source.kube, run))
    if chrome is not None:
        text = json.dumps(traces.chrome(place.name or root.rpartition("/")[2], found))
        write_new(chrome, text.encode(), "--chrome")
        say(f"{chrome} written; ui.perfetto.dev and chrome://tracing open it")
    for one in found if all_of_them else traces.latest(found):
        cells = [
            [row.phase, row.process, _seconds(row.begin), _seconds(row.seconds)]
            for row in traces.rows(one)
        ]
        typer.echo(plain(one.title))
        typer.echo(table(("PHASE", "PROCESS", "BEGIN", "SECONDS"), cells, terminal_width()))
        typer.echo(f"{plain(traces.longest(one))}\n")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _with_cluster(found: "Sequence[Trace]", kube: "Kube", run: Object) -> "Iterator[Trace]":
    """The traces with what Kubernetes and KubeRay still have of them."""
    name, namespace = run["metadata"]["name"], run["metadata"]["namespace"]
    path, labels = f"/apis/ray.io/v1/namespaces/{namespace}", f"{names.RUN_LABEL}={name}"

    def listed(kind: str) -> Sequence[Object]:
        found = _read(kind, lambda: kube.get(f"{path}/{kind}", labelSelector=labels))
        return (found or {}).get("items") or ()

    jobs, clusters = listed("rayjobs"), listed("rayclusters")
    pods = _read("pods", lambda: kube.pods(run)) or []
    attempts: set[int] = set()
    for one in found:
        more, attempt = of_pods(pods, one), one.start.attempt
        if attempt not in attempts and not one.recovery:
            own = _controlled(jobs, KIND, run, f"{name}-{attempt}")
            more += of_objects(own, _controlled(clusters, "RayJob", own), one)
        attempts.add(attempt)
        yield replace(one, spans=[*one.spans, *more])


def _controlled(
    items: Sequence[Object], kind: str, owner: Object | None, name: str | None = None
) -> Object | None:
    """The object that an owner controls, by UID, as labels and names can be anybody's."""
    for each in items:
        is_own = owner and pod_status.controller_uid(each, kind) == pod_status.uid(owner)
        if is_own and name in (None, pod_status.name(each)):
            return each
    return None


def _read(what: str, call: Callable[[], Any]) -> Any:
    """What the call returns; None: there is nothing, or it is refused, which is said."""
    try:
        return call()
    except (NotFoundError, NotServedError):
        return None
    except RunError as error:
        say(f"not read: {what}: {error}")
        return None


def of_objects(job: Object | None, cluster: Object | None, trace: "Trace") -> "list[Span]":
    """What the operator and KubeRay did before the driver began; unknown where objects are gone."""
    driver = trace.start.driver
    moments = [
        ("", trace.origin),
        ("trainingrun.ray_job.create", _created(job)),
        ("kuberay.ray_cluster.create", _created(cluster)),
        ("kuberay.ray_cluster.provision", _since(cluster, "RayClusterProvisioned")),
        ("kuberay.job.submit", driver.times.get("process") if driver is not None else None),
    ]
    return _between(moments, "control plane")


def of_pods(pods: "Sequence[Object]", trace: "Trace") -> "list[Span]":
    """The pods that were created in this start; of a start without any their phases are unknown."""
    from trainingrun_runtime.report_page.traces import Span

    end = float("inf") if trace.end is None else trace.end
    found = []
    for pod in pods:
        created = _created(pod)
        # Kubernetes' times are whole seconds.
        if created is None or not trace.origin - 1 <= created <= end:
            continue
        moments = [
            ("", created),
            ("k8s.pod.schedule", _since(pod, "PodScheduled")),
            ("k8s.pod.initialize", _since(pod, "Initialized")),
            ("k8s.container.start", _container_started(pod)),
            ("k8s.pod.ready", _since(pod, "Ready")),
        ]
        name, owner = pod_status.name(pod), pod_status.controller(pod, "RayCluster")
        # All of an attempt's begin with its RayCluster's name, which would fill the column.
        short = name.removeprefix(f"{owner.name}-") if owner is not None else name
        found += _between(moments, f"pod {short}", name)
    if not found and not trace.recovery:
        found = [Span("k8s.pod.schedule", "pods", None, None)]
    return found


def _between(
    moments: Sequence[tuple[str, float | None]], process: str, pod: str = ""
) -> "list[Span]":
    """Phases, each from the moment before it to its own; unknown without one of the two."""
    from trainingrun_runtime.report_page.traces import Span

    return [
        Span(phase, process, begin, None if begin is None else end, pod)
        for (_, begin), (phase, end) in itertools.pairwise(moments)
    ]


def _created(item: Object | None) -> float | None:
    found = pod_status.created(item) if item is not None else None
    return found.timestamp() if found is not None else None


def _since(item: Object | None, condition: str) -> float | None:
    """Since when a condition is true; none: it is not, or that is not known."""
    from trainingrun_runtime.report_page.timeline import unix_time

    found = pod_status.condition(item or {}, condition) or {}
    return unix_time(found.get("lastTransitionTime")) if found.get("status") == "True" else None


def _container_started(pod: Object) -> float | None:
    """When Ray's container started; none: it has not, or was restarted since."""
    from trainingrun_runtime.report_page.timeline import unix_time

    found = pod_status.ray_container(pod) or {}
    state = found.get("state") or {}
    if found.get("restartCount"):
        return None
    return unix_time((state.get("running") or state.get("terminated") or {}).get("startedAt"))
