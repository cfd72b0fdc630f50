"""When to reconcile a running attempt again if nothing happens before.

Whatever happens to its objects, and each new progress document, reconciles the run at once. Only
what time alone brings about needs another reconcile: a deadline, a silence that lasts too long. A
thousand attempts that train would else be reconciled 500 times a second for nothing.
"""

from collections.abc import Iterator

from ..api.contract import RunState
from .draft import Draft
from .model import Manifest
from .moments import parsed, seconds_since
from .node_signs import control_sign
from .scene import Scene
from .silence import wanted_pods

QUIET_S = 60.0
"""For an attempt that goes on as it should: in case news of it were lost."""
SHARE_OF_AGE = 0.1
"""What lasts for long is reconciled less often: after 100 s every 10 s."""


def after_s(scene: Scene, draft: Draft, attempt: int) -> float:
    """Seconds until the attempt is reconciled again."""
    often = scene.settings.poll_s
    ages = _ages(scene, draft, attempt)
    return min((max(often, min(QUIET_S, age * SHARE_OF_AGE)) for age in ages), default=QUIET_S)


def _ages(scene: Scene, draft: Draft, attempt: int) -> Iterator[float]:
    """For how many seconds each thing lasts that may soon be decided on; none: all is well."""
    ledger, word, index = draft.ledger, scene.live_word(attempt), scene.index(attempt)
    if scene.run.spec.suspend or ledger.suspend_asked or ledger.end_seen or ledger.given_up:
        yield 0.0  # each has a deadline of its own that is not far
    if word is not None and word.lost_nodes:
        yield 0.0  # the nodes' Leases are being read
    if any(control_sign(scene, node) for node in scene.observed.nodes.values()):
        yield 0.0
    for time in (ledger.hung_since, ledger.incomplete_since, *ledger.lost_nodes.values()):
        if time is not None:
            yield seconds_since(time, scene.now)
    if scene.observed.progress_failing_s is not None:
        yield scene.observed.progress_failing_s
    for pod in index.unwell:
        yield _age(scene, pod)
    complete = len(index.all) >= wanted_pods(scene, draft)
    if not complete or word is None or word.state is RunState.STARTING:
        # It starts, or waits for pods: how long is counted from the newest of them.
        youngest = min((_age(scene, pod) for pod in index.all), default=None)
        last = draft.status.attempts[-1]
        yield seconds_since(last.start_time, scene.now) if youngest is None else youngest


def _age(scene: Scene, pod: Manifest) -> float:
    """Seconds since the pod was created or, where its deletion was asked for, should be gone."""
    metadata = pod["metadata"]
    text = metadata.get("deletionTimestamp") or metadata.get("creationTimestamp")
    return max((scene.now - parsed(text)).total_seconds(), 0.0) if text else 0.0
