"""Looks for a hang beside the training, keeps the stacks, and ends what hangs."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

from trainingrun_protocol.contract import STACKS_REQUEST_FILE, RunContract

from ..coordinator.hangs import Silence
from ..coordinator.ranks import Member, RankProcess
from ..error_text import first_line
from ..ray_internals.training import call_beside, kill
from ..state_directory import state_directory
from ..store import kept_stacks
from ..store.bucket import Bucket
from ..store.storage_errors import StorageError
from . import verdict
from .rank_stacks import Attendant, RankStack, own_stack

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
READY_S = 10.0
"""So long before a hang the process is started that will look at the ranks of a node."""
STACKS_S = 14.0
"""Seconds for the stacks of all ranks: more than one needs."""
BESIDE_S = 3.0
"""Seconds for a rank's own answer, where its node gives none."""
CALL_S = 10.0
"""Seconds for an answer of the coordinator."""
ENDS_S = 10.0
"""Seconds in which Ray notices that a process was ended."""
LOOKS_WELL = 600
"""Looks in a row that succeed, after which the next failure is news again."""
WRITE_S = 120.0
"""Seconds for which stacks wait for a store that does not answer."""
REQUEST_S = 10.0
"""The same, for stacks that somebody has asked for."""


class HangWatch:
    """A thread of the driver.

    Args:
        coordinator: handle of the `Coordinator` actor.
        contract: the operator's settings of this attempt.
        bucket: the run's folder.
    """

    def __init__(self, coordinator: Any, contract: RunContract, bucket: Bucket) -> None:
        self._coordinator, self._bucket = coordinator, bucket
        self._attempt, self._settings = contract.attempt, contract.hang
        self._answers_requests = contract.trial is None  # the trials of a sweep share the head
        self._attendants: dict[str, Any] = {}  # by Ray node
        self._handled: int | None = None  # the group whose hang was found
        self._ended: tuple[float, dict[int, Member]] | None = None
        self._request: threading.Thread | None = None  # writes stacks that somebody has asked for

    def run(self, ended: threading.Event) -> None:
        """Look until `ended`; an error of one look does not end the next ones."""
        told: type[Exception] | None = None  # a busy machine may fail many looks
        well = 0
        while not ended.wait(LOOK_EVERY_S):
            try:
                self._look()
                well += 1
            except Exception as error:  # the training does not depend on it
                if type(error) is not told or well >= LOOKS_WELL:
                    log.warning("the ranks cannot be watched for hangs: %s", first_line(error))
                told, well = type(error), 0
        self._dismiss()

    def _look(self) -> None:
        silence: Silence | None = ray.get(self._coordinator.silence.remote(), timeout=CALL_S)
        if self._answers_requests:
            self._answer_request()
        if silence is None or silence.seconds < silence.limit_s - READY_S:
            self._dismiss()
            self._handled = self._ended = None
            return
        if silence.seconds < silence.limit_s / 2:
            return
        members = self._members()
        if not members:  # none has said where it is, so there is nothing to end
            return
        self._attend(members)
        if not silence.is_hang:
            self._handled = None
        elif self._handled != silence.group:
            self._found(silence, members)
        elif self._ended is not None and time.monotonic() - self._ended[0] > ENDS_S:
            self._report_stuck(self._ended[1])

    def _members(self) -> dict[int, Member]:
        return dict(ray.get(self._coordinator.members.remote(), timeout=CALL_S))

    def _attend(self, members: Mapping[int, Member]) -> None:
        for node in {one.place.ray_node for one in members.values()} - self._attendants.keys():
            self._attendants[node] = (
                ray.remote(Attendant)
                .options(num_cpus=0, label_selector={"ray.io/node-id": node})
                .remote()
            )

    def _dismiss(self) -> None:
        while self._attendants:
            _, attendant = self._attendants.popitem()
            ray.kill(attendant)

    def _answer_request(self) -> None:
        """Keep the stacks if somebody wants to see them now; the request ends once they are."""
        request = state_directory() / STACKS_REQUEST_FILE
        if not request.exists() or (self._request is not None and self._request.is_alive()):
            return
        try:
            members = self._members()
            self._attend(members)
            found, at = self._stacks(members), kept_stacks.moment(time.time())
        except Exception:
            request.unlink(missing_ok=True)
            raise
        folder = kept_stacks.folder_of(self._attempt, at)

        def write() -> None:
            try:
                self._write(folder, found, REQUEST_S)
            finally:
                request.unlink(missing_ok=True)

        self._request = _beside(write)

    def _found(self, silence: Silence, members: dict[int, Member]) -> None:
        found = self._stacks(members)
        again: Silence | None = ray.get(self._coordinator.silence.remote(), timeout=CALL_S)
        if again is None or again.group != silence.group or not again.is_hang:
            return  # it went on meanwhile
        now = time.time()
        folder = kept_stacks.folder_of(self._attempt, kept_stacks.moment(now))
        uri = self._bucket.uri(folder)
        hang = verdict.hang_of(found, members, now, again.seconds, uri)
        log.error("%s; the stacks are in %s", hang.message, uri)
        _beside(lambda: self._write(folder, found))
        restarts = self._settings.action == "Restart"
        ray.get(self._coordinator.hung.remote(silence.group, hang, restarts), timeout=CALL_S)
        if restarts:
            hung = verdict.hung_ranks(found) or [max(members)]
            self._end({rank: members[rank] for rank in hung})
        self._handled = silence.group  # last: what has failed before is tried again

    def _stacks(self, members: Mapping[int, Member]) -> dict[int, RankStack | None]:
        """Where each rank stands; None: neither its node nor the rank itself answers."""
        found: dict[int, RankStack | None] = dict.fromkeys(members)
        calls = {
            self._attendants[node].stacks.remote(processes): node
            for node, processes in _by_node(members).items()
        }
        for answer in _answers(calls, STACKS_S).values():
            found |= answer
        silent = {rank: members[rank] for rank, stack in found.items() if not _known(stack)}
        beside = {call_beside(one.process.actor, own_stack): rank for rank, one in silent.items()}
        return found | _answers(beside, BESIDE_S)

    def _end(self, members: dict[int, Member]) -> None:
        """End the processes of these ranks: Ray restarts the worker group then."""
        calls = {
            self._attendants[node].end.remote(processes): node
            for node, processes in _by_node(members).items()
        }
        left = _answers(calls, CALL_S)
        for rank, one in members.items():
            if rank in left.get(one.place.ray_node, (rank,)):
                kill(one.process.actor)  # Ray may reach it where its node's actor was not
        self._ended = time.monotonic(), members

    def _report_stuck(self, members: Mapping[int, Member]) -> None:
        """The group still stands: the operator deletes the pods of these ranks."""
        pods = sorted({one.place.pod for one in members.values() if one.place.pod})
        log.error("a hung process could not be ended in %s", ", ".join(pods) or "its node")
        self._coordinator.stuck.remote(tuple(pods))
        self._ended = None

    def _write(
        self, folder: str, found: Mapping[int, RankStack | None], limit_s: float = WRITE_S
    ) -> None:
        texts = {
            rank: f"{verdict.where(stack)}\n\n{stack.text if stack else ''}"
            for rank, stack in found.items()
        }
        began = time.monotonic()
        while True:
            try:
                kept_stacks.write(self._bucket, folder, texts)
                return
            except StorageError as error:
                if time.monotonic() - began > limit_s:
                    log.warning("the stacks were not kept: %s", error)
                    return
                time.sleep(1.0)


def _beside(work: Callable[[], None]) -> threading.Thread:
    """Begin what waits for the store: the next look does not."""
    thread = threading.Thread(target=work, name="stacks", daemon=True)
    thread.start()
    return thread


def _known(stack: RankStack | None) -> bool:
    return stack is not None and bool(stack.frames)


def _by_node(members: Mapping[int, Member]) -> dict[str, dict[int, RankProcess]]:
    found: dict[str, dict[int, RankProcess]] = {}
    for rank, one in members.items():
        found.setdefault(one.place.ray_node, {})[rank] = one.process
    return found


def _answers(calls: Mapping[Any, Any], limit_s: float) -> dict[Any, Any]:
    """What was answered in time, by what was asked."""
    found: dict[Any, Any] = {}
    if not calls:
        return found
    answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=limit_s)
    for call in answered:
        try:
            found[calls[call]] = ray.get(call, timeout=0)
        except Exception as error:  # it is lost, or was ended meanwhile
            log.warning("no answer about a hang: %s", str(error).partition("\n")[0])
    return found
