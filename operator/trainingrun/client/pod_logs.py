"""What the pods of a run print, as the API server has it, while they are there."""

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..api.errors import RunError
from ..local.run_line import phase
from ..reconciling import pod_status
from . import following, log_lines
from .errors import NoLogError, NotFoundError
from .log_lines import Batch, Printed, Selection, together, unix, until_its_end
from .places import Say

if TYPE_CHECKING:
    from .kube import Kube

_AT_ONCE = 8
"""Logs that are read at once, where none is followed."""
_BATCH_S = 0.5
_LAST_LINES_S = 10.0
"""For the last lines of pods once the run has ended: that of a lost node never closes its log."""
_FIRST_LINE_S = 60.0
"""From the start of a container to its first line, at most: Ray prints some as it starts."""
_LABELED = re.compile(r"\[(driver|(?:trial (\d{1,9}) )?rank (\d{1,9}))\] (.*)", re.DOTALL)


class PodLogs:
    """The logs of a run's pods."""

    def __init__(self, kube: "Kube", selection: Selection, say: Say) -> None:
        """Read what is selected; sentences about the pods are said."""
        self._kube, self._selection, self._say = kube, selection, say
        # By pod UID: the time of the first line, and that of the last one, also as it is written.
        self._first: dict[str, float] = {}
        self._read_up_to: dict[str, tuple[float, str]] = {}
        self._lines: queue.Queue[Printed] = queue.Queue()
        self._errors: list[RunError] = []
        self._followed: dict[str, threading.Thread] = {}
        self._away: dict[str, bool] = {}  # by pod UID: of a log that is not answered, whether said
        self._shown: list[Printed] = []
        self.empty = True
        """Whether no line was wanted so far."""
        self.unread: dict[str, str] = {}
        """Names of pods by their UID, of whose logs `now` has not read all."""
        self.rotated: list[str] = []
        """Names of pods whose logs had too few lines, as the kubelet has begun a new file."""

    def now(self, pods: list[dict[str, Any]]) -> list[Printed]:
        """What the pods have printed until now.

        Several are read at once: of each pod of a lost node there is no answer for half a minute.

        Raises:
            RunError: The API server refuses one of them.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [line for lines in pool.map(self._last_lines, pods) for line in lines]

    def _last_lines(self, pod: Mapping[str, Any]) -> list[Printed]:
        by_rank: dict[int | None, deque[Printed]] = {}
        for line in self._read(pod, since_s=self._selection.since_s):
            kept = by_rank.setdefault(line.rank, deque(maxlen=self._selection.tail))
            kept.append(line)
        few = any(len(lines) < self._selection.tail for lines in by_rank.values())
        if few and self._selection.since_s is None and self._begins_late(pod):
            self.rotated.append(pod["metadata"]["name"])
        return [line for lines in by_rank.values() for line in lines]

    def _begins_late(self, pod: Mapping[str, Any]) -> bool:
        """Whether the log lacks its beginning: the API server has the kubelet's last file alone."""
        state = (pod_status.ray_container(pod) or {}).get("state") or {}
        began = unix(str((state.get("running") or state.get("terminated") or {}).get("startedAt")))
        return 0 < began < self._first.get(pod["metadata"]["uid"], 0.0) - _FIRST_LINE_S

    def _read(self, pod: Mapping[str, Any], **how: Any) -> Iterator[Printed]:
        """The wanted lines of a pod that were not read before.

        Raises:
            RunError: The API server refuses it.
        """
        uid, follows = pod["metadata"]["uid"], bool(how.get("follow"))
        before = self._read_up_to.get(uid)
        try:
            for text in self._kube.pod_log(pod, **how):
                self._away.pop(uid, None)
                stamp, _, rest = text.partition(" ")
                at = unix(stamp), stamp  # the text has nanoseconds
                if before is not None and at <= before:
                    continue
                before = None  # of what follows some may be earlier: a clock can be set back
                if at[0]:  # else it is the kubelet that says something
                    self._first.setdefault(uid, at[0])
                    self._read_up_to[uid] = at
                if (line := self._wanted(stamp, rest)) is not None:
                    self.empty = False
                    yield line
            self._away.pop(uid, None)
        except NotFoundError:
            pass  # it is gone
        except NoLogError as error:
            if not follows:
                self._say(f"{error}.")
        except RunError as error:
            # Of a node that is lost the API server answers 500, as it cannot reach its kubelet.
            if not following.passes(error):
                raise
            if not follows:
                self.unread[uid] = pod["metadata"]["name"]
            self._say_away(pod, error, at_once=not follows)

    def _say_away(self, pod: Mapping[str, Any], error: RunError, *, at_once: bool) -> None:
        """Say why a log cannot be read, once until it can be read again.

        Args:
            pod: Of a node that may be lost.
            error: What the API server answers, if it does.
            at_once: Whether the first failure is said. That of a log that is followed may be a
                connection that was closed.
        """
        uid, about = pod["metadata"]["uid"], f"the log of pod {pod['metadata']['name']}: "
        said = self._away.get(uid)
        self._away[uid] = at_once or said is not None
        if self._away[uid] and not said:
            self._say(f"{about}{str(error).removeprefix(about)}.")

    def _wanted(self, stamp: str, text: str) -> Printed | None:
        labeled = _LABELED.fullmatch(text)
        if labeled is None:
            return None  # of Ray itself
        rank = int(labeled[3]) if labeled[3] else None
        trial = int(labeled[2]) if labeled[2] else None
        if not self._selection.takes(rank) or self._selection.trial not in (None, trial):
            return None
        return Printed(unix(stamp), rank, labeled[4]) if self._selection.wants(text) else None

    def follow(self, followed: following.Followed, shown: list[Printed]) -> Iterator[Batch]:
        """What is printed from now on, until the run has ended.

        Args:
            followed: The run.
            shown: Lines so far; a log that could not be read yet may have some of them, too.

        Raises:
            RunError: The API server refuses it.
        """
        self._shown = shown
        for run in until_its_end(followed, self._selection, self._say):
            if run is not None:
                try:
                    for pod in self._kube.pods(run):
                        self._begin(pod)
                except RunError as error:
                    if not following.passes(error):  # else it is asked again
                        raise
            until = time.monotonic() + log_lines.POLL_S
            while (run is None or phase(run) not in followed.ends) and time.monotonic() < until:
                yield self._come()
        until = time.monotonic() + _LAST_LINES_S
        while any(thread.is_alive() for thread in self._followed.values()) or self._lines.qsize():
            yield (come := self._come())
            if come.lines:
                until = time.monotonic() + _LAST_LINES_S
            elif time.monotonic() > until:
                return

    def _come(self) -> Batch:
        """The lines that come within a moment.

        Raises:
            RunError: The API server refuses it.
        """
        lines = sorted(self._waiting(), key=lambda line: line.time)
        if self._errors and not lines:
            raise self._errors[0]
        return Batch(lines)

    def _begin(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        before = self._followed.get(uid)
        has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        all_read = has_ended and uid not in self._away
        if before is not None and (before.is_alive() or all_read):
            return
        thread = threading.Thread(target=self._follow_pod, args=(pod,), daemon=True)
        self._followed[uid] = thread
        thread.start()

    def _follow_pod(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        try:
            if uid in self.unread and not self._read_late(pod):
                return  # it is opened again
            _, before = self._read_up_to.get(uid, (0.0, None))
            for line in self._read(pod, follow=True, since=before, since_s=self._selection.since_s):
                self._lines.put(line)
        except RunError as error:
            self._errors.append(error)

    def _read_late(self, pod: dict[str, Any]) -> bool:
        """Read the last lines of a log that could not be read before; whether it now can be.

        Raises:
            RunError: The API server refuses it.
        """
        del self.unread[pod["metadata"]["uid"]]
        lines, known = self.now([pod]), set(self._shown)
        # The folder may have had some of them.
        for line in together(self._shown, lines, len(self._shown) + len(lines)):
            if line not in known:
                self._lines.put(line)
        return pod["metadata"]["uid"] not in self.unread

    def _waiting(self) -> Iterator[Printed]:
        until = time.monotonic() + _BATCH_S
        while (left := until - time.monotonic()) > 0:
            try:
                yield self._lines.get(timeout=left)
            except queue.Empty:
                return
