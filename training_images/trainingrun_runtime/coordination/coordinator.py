"""The board: one actor beside the driver, where workers, Ray's controller and the driver meet.

It keeps the ledger, writes the progress document, hands uploads to the driver's committer, and
answers each of rank 0's reports with what is to be done (checkpoint and leave, or suspend).
"""

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import ray

from trainingrun.api.contract import (
    Failure,
    LastCheckpoint,
    Progress,
    ProgressResult,
    RecordKind,
    RunContract,
    RunState,
)

from ..checkpoints.manifest import Manifest
from ..checkpoints.uploaded_checkpoint import Upload
from ..progress import document as progress_document
from ..progress.time_accounting import Ledger, StepReport
from ..ray_internals import nodes

log = logging.getLogger(__name__)

NOTHING, SAVE, LEAVE, SUSPEND = range(4)
"""What rank 0 is told; the larger number wins where ranks disagree."""

_SETTLED = 1000
"""Names kept of checkpoints that were committed or given up; a rank asks for its newest one."""


class Board:
    """See the module. Methods are called from other processes.

    Args:
        contract: what the operator said.
        epoch: the lease's epoch.
        started: Unix time at which the driver started.
        document: where the progress document is written.
        checkpoint: the newest intact checkpoint, if there is one.
    """

    def __init__(
        self,
        contract: RunContract,
        epoch: int,
        started: float,
        document: Path,
        checkpoint: LastCheckpoint | None,
    ) -> None:
        self._ledger = Ledger(contract.attempt, epoch, started)
        self._document = document
        self._order = NOTHING
        self._commits = 0
        self._uploads: deque[Upload] = deque()
        self._settled: deque[str] = deque(maxlen=_SETTLED)
        self._arrived = threading.Condition()
        self._troubles: dict[str, tuple[str, float]] = {}  # who -> (what, since when)
        self._places: dict[int, tuple[str, str, str]] = {}  # rank -> (Ray node, node, pod)
        self._lost: dict[str, str] = {}  # Ray node -> Kubernetes node
        self._final_metrics: dict[str, Any] = {}
        self._group, self._group_began, self._has_session = 0, 0.0, False
        if checkpoint is not None:
            self._ledger.committed(checkpoint)
        self._lock, self._writing = threading.Lock(), threading.Lock()
        threading.Thread(target=self._keep_writing, name="progress", daemon=True).start()

    def joined(self, rank: int, ray_node: str, node: str, pod: str) -> None:
        """A worker began: where it is, so that losses have an address."""
        self._places[rank] = (ray_node, node, pod)
        # A node that came back, or got a new pod, is not lost.
        self._lost = {dead: name for dead, name in self._lost.items() if name != node}

    def group_started(self, world_size: int, resumed_step: int, skipped: list[str]) -> int:
        """Rank 0: a worker group begins; its number."""
        with self._lock:
            for message in skipped:
                self._ledger.skipped(time.time(), message)
            if self._order == LEAVE:
                self._order = NOTHING
            # The ranks that told of trouble are gone; the new ones tell of theirs.
            for who in [who for who in self._troubles if who.startswith("rank ")]:
                del self._troubles[who]
            self._group_began, self._has_session = time.time(), False
            self._group = self._ledger.group_started(self._group_began, world_size, resumed_step)
            return self._group

    def stepped(self, report: StepReport) -> int:
        """Rank 0: steps were done; the answer is what to do now."""
        with self._lock:
            self._has_session = True
            self._ledger.stepped(report)
        return self._order

    def reported(self, step: int, metrics: dict[str, Any]) -> None:
        """Ray's controller: `ray.train.report` of training code, all that plain code tells."""
        with self._lock:
            if self._has_session:
                return  # which tells it sooner, and knows what its steps took
            now = time.time()
            self._ledger.stepped(
                StepReport(
                    group=self._group,
                    step=step,
                    total=None,
                    begun=self._group_began,
                    done=now,
                    productive=now - self._group_began,
                    checkpoint=0.0,
                    metrics=progress_document.printable_metrics(metrics),
                )
            )

    def finished(self, metrics: dict[str, Any]) -> None:
        """Rank 0: the training's final metrics."""
        self._final_metrics = {**self._final_metrics, **metrics}

    def last_step(self) -> int:
        """Steps done."""
        return self._ledger.step

    def order(self, what: int) -> None:
        """The driver: have the workers save and leave, or suspend."""
        self._order = max(self._order, what)

    def uploaded(self, upload: Upload) -> None:
        """Ray's controller: all ranks have uploaded their part of a checkpoint."""
        with self._arrived:
            self._uploads.append(upload)
            self._arrived.notify_all()

    def next_upload(self, wait_s: float) -> Upload | None:
        """The driver: the oldest upload that is not settled; None if none comes within `wait_s`."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._uploads, wait_s)
            return self._uploads[0] if self._uploads else None

    def uploads_waiting(self) -> int:
        """How many uploads are neither committed nor given up."""
        return len(self._uploads)

    def committed(self, upload: Upload, manifest: Manifest, uri: str) -> None:
        """The driver: an upload counts from now on."""
        with self._lock:
            self._commits += 1
            self._ledger.committed(LastCheckpoint(uri=uri, step=manifest.step, time=manifest.time))
        self._settle(upload)

    def abandoned(self, upload: Upload) -> None:
        """The driver: an upload will never count."""
        self._settle(upload)

    def _settle(self, upload: Upload) -> None:
        with self._arrived:
            self._uploads.remove(upload)
            self._settled.append(upload.path.rpartition("/")[2])

    def commits(self) -> int:
        """How many checkpoints this driver committed."""
        return self._commits

    def settled(self, name: str) -> bool:
        """Whether the checkpoint in the folder of this name was committed, or given up."""
        return name in self._settled

    def storage(self, who: str, trouble: str | None) -> None:
        """Anyone: the store does not do what `who` asks of it, in a sentence; None: it does."""
        with self._lock:
            if trouble is None:
                self._troubles.pop(who, None)
            else:
                _, since = self._troubles.get(who, (trouble, time.time()))
                self._troubles[who] = (trouble, since)

    def interrupted(self) -> None:
        """Ray's controller: a worker group ended for the store's sake; nothing was lost."""
        with self._lock:
            self._ledger.interrupted()

    def disrupted(self, kind: RecordKind, message: str, ranks: tuple[int, ...]) -> None:
        """Ray's controller: a worker group ended before its time."""
        place = next((self._places[rank] for rank in ranks if rank in self._places), None)
        node, pod = (place[1], place[2]) if place else (None, None)
        with self._lock:
            self._ledger.disrupted(time.time(), kind, message, node=node, pod=pod)

    def failed(self, failure: Failure) -> None:
        """The driver gives up; the first reason stays."""
        with self._lock:
            self._ledger.failed(time.time(), failure)
        self.write()

    def suspended(self) -> None:
        """The driver ends because it was asked to."""
        with self._lock:
            self._ledger.suspended()
        self.write()

    def complete(self, result: ProgressResult) -> ProgressResult:
        """The result with the training's final metrics on top."""
        return result.model_copy(update={"metrics": {**result.metrics, **self._final_metrics}})

    def succeeded(self, result: ProgressResult) -> None:
        """Training is done, and the bucket says so too."""
        with self._lock:
            self._ledger.succeeded(result)
        self.write()

    def document(self) -> Progress:
        """The progress as it stands."""
        with self._lock:
            document = self._ledger.document(time.time(), sorted(set(self._lost.values())))
            trouble, since = min(
                self._troubles.values(), key=lambda found: found[1], default=(None, None)
            )
        if document.state is RunState.SUCCEEDED or trouble is None:
            return document
        return document.model_copy(update={"storage_error": trouble, "storage_error_since": since})

    def write(self) -> None:
        """Write the progress document now."""
        # One at a time: a thread that was slower would put an older document over a final one.
        with self._writing:
            progress_document.write(self._document, self.document())

    def _keep_writing(self) -> None:
        turn = 0
        while True:
            time.sleep(0.25)
            turn += 1
            try:
                if turn % 4 == 0:
                    self._look_for_lost_nodes()
                self.write()
            except Exception:  # the document must go on whatever one look at Ray says
                log.exception("the progress document could not be written")

    def _look_for_lost_nodes(self) -> None:
        places = {place[0]: place[1] for place in self._places.values()}
        if not places:
            return
        for dead in nodes.dead_nodes() & places.keys():
            self._lost.setdefault(dead, places[dead])


def start(*arguments: Any) -> Any:
    """Start the board in a process of its own on the driver's node; its actor handle."""
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(Board)
        .options(num_cpus=0, max_concurrency=16, label_selector={"ray.io/node-id": here})
        .remote(*arguments)
    )
