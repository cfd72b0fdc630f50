"""Of which nodes the Lease is read: those that a sign other than the control plane's is against.

The Lease of such a node is then read (`NodeState.lease_age_s`): the Node object shows the
loss most of a minute later. The Leases of nodes that were lost and are Ready are read too: a
renewal since proves that they are back. Others are never read: each is renewed every 10 s.
"""

from collections.abc import Iterator
from datetime import datetime

from ..rendering.render_settings import RenderSettings
from . import node_loss, pod_status
from .context import ReconcileContext
from .model import Observed
from .node_health import control_sign
from .reconcile_settings import ReconcileSettings


def suspects(
    observed: Observed, render: RenderSettings, settings: ReconcileSettings, now: datetime
) -> tuple[str, ...]:
    """Names of the nodes, in order; those that the control plane already shows as lost need no
    Lease and are left out.
    """
    if not _any_sign(observed):
        return ()
    context = ReconcileContext(observed, render, settings, now)
    return tuple(
        sorted(
            name
            for name in set(_candidates(context))
            if (node := observed.nodes.get(name)) is not None
            and control_sign(context, node) is None
        )
    )


def _any_sign(observed: Observed) -> bool:
    """Whether any node can be a candidate; mostly none is."""
    progress = observed.progress
    return (
        observed.progress_failing_s is not None
        or (progress is not None and bool(progress.lost_nodes))
        or bool(observed.run.status.seen.get("lostNodes"))
        or any(pod_status.terminating(pod) for pod in observed.pods)
    )


def _candidates(context: ReconcileContext) -> Iterator[str]:
    number = context.run.status.attempt
    for name, node in context.observed.nodes.items():
        if node_loss.network_sign(context, number, node):
            yield name
    yield from context.run.status.seen.get("lostNodes") or ()
    for pod in context.pods_left:
        node_name = pod_status.node_name(pod)
        if node_name is not None and node_loss.outstays(context, pod):
            yield node_name
