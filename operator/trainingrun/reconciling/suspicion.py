"""Which nodes something other than the control plane speaks against.

The Lease of such a node is then read (`NodeSight.lease_age_s`): the control plane's own word comes
most of a minute later. The Leases of nodes that were lost and look well are read too, for a renewal
since proves that they are back. Others are never read, for every node renews its own every 10 s.
"""

from collections.abc import Iterator
from datetime import datetime

from ..rendering.settings import RenderSettings
from . import disruptions, pods
from .model import Observed
from .node_signs import control_sign
from .scene import Scene
from .settings import ReconcileSettings


def suspects(
    observed: Observed, render: RenderSettings, settings: ReconcileSettings, now: datetime
) -> tuple[str, ...]:
    """Names of the nodes, in order; those that the control plane already speaks against need no
    Lease and are left out.
    """
    if not _any_sign(observed):
        return ()
    scene = Scene(observed, render, settings, now)
    return tuple(
        sorted(
            name
            for name in set(_candidates(scene))
            if (node := observed.nodes.get(name)) is not None and control_sign(scene, node) is None
        )
    )


def _any_sign(observed: Observed) -> bool:
    """Whether it is worth while to look closer; mostly it is not."""
    word = observed.progress
    return (
        observed.progress_failing_s is not None
        or (word is not None and bool(word.lost_nodes))
        or bool(observed.run.status.seen.get("lostNodes"))
        or any(pods.leaving(pod) for pod in observed.pods)
    )


def _candidates(scene: Scene) -> Iterator[str]:
    number = scene.run.status.attempt
    for name, node in scene.observed.nodes.items():
        if disruptions.network_sign(scene, number, node):
            yield name
    yield from scene.run.status.seen.get("lostNodes") or ()
    for pod in scene.pods():
        node_name = pods.node_name(pod)
        if node_name is not None and disruptions.outstays(scene, pod):
            yield node_name
