"""A private Ray cluster on this machine: a head, and one simulated node per worker pod.

Every node has its own state folder, so that the runtime's processes on it see the notice of their
node and of no other. Nothing is shared with another Ray on the machine: the ports are free ones,
the session folders private, and a token refuses other clients.
"""

import contextlib
import importlib.util
import json
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from trainingrun_protocol.contract import (
    NOTICE_ENV,
    ONE_MACHINE_ENV,
    PREEMPTION_NOTICE_FILE,
    SAVED_FILE,
    STATE_DIRECTORY_ENV,
    WATCHERS_FOLDER,
)

from ..rendering import environments
from ..rendering.contracts import node_cpus
from . import processes
from .machine import LocalError

NOTICE_SECONDS = 30
"""Grace period of a simulated preemption, in seconds; that of the generic platform."""


_LAST_UPLOAD_S = 6.0
_STARTED, _FIRST_LINES = b"Ray runtime started", 65536
_START_TRIES = 3
_START_DEADLINE_S = 120.0
_MAX_DEATHS = 20
_OBJECT_STORE_BYTES = 200_000_000
"""Per node. Ray's own default, 30 % of the memory for each node, would add up to several times the
machine."""

_SETTINGS = {
    # As in the pods, so that a loss is detected as soon as there.
    **environments.RAY_TUNING,
    # But a busy laptop is slower than a busy pod, and a process that ends here closes its sockets:
    # longer timeouts delay nothing, and shorter ones end nodes that only wait for a CPU.
    "RAY_health_check_timeout_ms": "20000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "60",
    # Each node's monitor would watch the whole machine: one large rank, and Ray ends processes of
    # all nodes, its own too.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_RAY_CLUSTERS": "1",  # Ray refuses several nodes on macOS without it
}


@dataclass(frozen=True, slots=True)
class Node:
    """One simulated machine."""

    name: str
    """`head`, or `local-1`, `local-2` …; numbers are never used twice."""
    state: Path
    """Its state folder: notice, saved, watchers and, on the head, progress.json."""
    process: "subprocess.Popen[bytes]"
    """`ray start --block`, the leader of everything that runs on the node."""
    devices: tuple[str, ...] = ()
    """Its NVIDIA GPUs."""
    log: Path = Path(os.devnull)
    """What `ray start` prints."""
    log_began: int = 0
    """Bytes that were in it before."""

    @property
    def alive(self) -> bool:
        """Whether its Ray still runs."""
        return self.process.poll() is None

    @property
    def started(self) -> bool:
        """Whether its Ray says that it has started."""
        try:
            with self.log.open("rb") as file:
                file.seek(self.log_began)
                return _STARTED in file.read(_FIRST_LINES)
        except OSError:
            return True  # nobody can tell


class LocalRay:
    """The cluster; as a context manager it leaves no process and no folder behind."""

    def __init__(
        self,
        logs: Path,
        environment: Mapping[str, str],
        resources: Mapping[str, float],
        devices: tuple[str, ...] = (),
        *,
        workers_per_node: int = 1,
        data_cpus: int | None = None,
        uploads_output: bool = False,
    ) -> None:
        """Prepare a cluster; nothing runs yet.

        Args:
            logs: Folder for the nodes' output.
            environment: Variables of every process on every node, beside this process's own.
            resources: Ray resources of one worker, such as {"CPU": 1, "GPU": 1}; counts may exceed
                the machine's, since to Ray they are bookkeeping.
            devices: The machine's NVIDIA GPUs, which the nodes share out.
            workers_per_node: So many times the resources are on each node.
            data_cpus: Ray CPUs of each node for Ray Data; None: as many as for its workers.
            uploads_output: Whether what drivers and ranks print is kept in the run's folder too.
        """
        self._logs = logs
        self._resources = {name: count * workers_per_node for name, count in resources.items()}
        self._data_cpus = data_cpus
        self._uploads_output = uploads_output
        self._uploader: subprocess.Popen[bytes] | None = None
        self._free_devices = list(devices)
        # Short, and not below $TMPDIR: a socket's path may have no more than 104 characters.
        self._home = Path(tempfile.mkdtemp(prefix="tr-", dir="/tmp"))
        self._reaper = processes.Reaper(self._home)
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_ADDRESS", "RAY_AUTH", "RAY_JOB", "TRAININGRUN_"))
        }
        self._environment = {
            **inherited,
            **_SETTINGS,
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            NOTICE_ENV: str(NOTICE_SECONDS),
            ONE_MACHINE_ENV: "1",
            **environment,
        }
        self.address = ""
        self._head: Node | None = None
        self._workers: list[Node] = []
        self._head_processes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._deaths = 0

    @property
    def head(self) -> Node:
        """The node without CPUs, on which the driver runs."""
        if self._head is None:
            raise LocalError("the local Ray is not running")
        return self._head

    @property
    def workers(self) -> tuple[Node, ...]:
        """The nodes that train, oldest first."""
        return tuple(self._workers)

    @property
    def uploader(self) -> "subprocess.Popen[bytes] | None":
        """What keeps the output of drivers and ranks; None: nothing does."""
        return self._uploader

    @property
    def running(self) -> bool:
        """Whether it was started, and not stopped since."""
        return self._head is not None

    def start(self, workers: int) -> None:
        """Start the head and so many worker nodes, and wait for the head.

        Raises:
            LocalError: Ray did not come up.
        """
        for remaining in reversed(range(_START_TRIES)):
            try:
                self._start_once(workers)
                return
            except LocalError:
                # Ray gives itself 30 s, which a machine that is busy otherwise may not keep.
                self.stop()
                if not remaining:
                    raise

    def _start_once(self, workers: int) -> None:
        port = _free_port()
        command = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        command += ["--no-monitor"]
        if importlib.util.find_spec("grpc"):
            # Its default is one fixed port, which a second cluster on this machine could not have.
            command += [f"--ray-client-server-port={_free_port()}"]
        self._head = self._start_node("head", command, ())
        self._update_reaper()
        # The workers load Ray while the head does: they need only its control store's port.
        self._wait(lambda: _listens(port))
        self.address = f"127.0.0.1:{port}"
        for _ in range(workers):
            self.add_worker()
        current = self._home / "head" / "ray_current_cluster"
        # It is there, and empty, before Ray has written to it.
        self._wait(lambda: current.exists() and bool(current.read_text().strip()))
        self.address = current.read_text().strip()
        if self._uploads_output:  # one for all nodes
            states = str(self._state_of("*"))
            uploader = ["-m", "trainingrun_runtime.output.uploader", str(os.getpid()), states]
            self._uploader = self.start_on_head(uploader, {}, Path(os.devnull))

    def add_worker(self) -> Node:
        """Start one more worker node; it joins within seconds, this does not wait for it."""
        self._started += 1
        cpus = math.ceil(self._resources.get("CPU", 1))  # Ray's command takes whole numbers only
        gpus = math.ceil(self._resources.get("GPU", 0))
        others = {k: v for k, v in self._resources.items() if k not in ("CPU", "GPU", "memory")}
        devices = tuple(self._free_devices.pop(0) for _ in range(gpus))
        command = [f"--address={self.address}", f"--num-gpus={gpus}"]
        command += [f"--num-cpus={node_cpus(cpus, self._data_cpus)}"]
        command += [f"--resources={json.dumps(others)}"]
        # Its output is kept in files, and needs no process that hands it to the driver.
        command += ["--include-log-monitor=false"]
        name = f"local-{self._started}"
        self._keep_output(name)
        node = self._start_node(name, command, devices)
        self._workers.append(node)
        self._update_reaper()
        return node

    def _keep_output(self, name: str) -> None:
        """Keep the logs of a worker's node, and what the training prints, after the cluster's end.

        Ray writes them below the node's own folder, in the session that the head has named, and
        that folder goes with the cluster.
        """
        session = (self._home / "head" / "session_latest").resolve().name
        kept = self._logs.absolute() / name
        try:
            kept.mkdir(parents=True, exist_ok=True)
        except OSError:
            return  # then it goes with the cluster
        folder = self._home / name / session
        folder.mkdir(parents=True)
        (folder / "logs").symlink_to(kept)

    def remove(self, node: Node) -> None:
        """Kill a worker node and everything on it, without any warning; gone already is fine."""
        processes.kill(node.process)
        if node not in self._workers:
            return
        self._workers.remove(node)
        self._update_reaper()
        self._free_devices += node.devices

    def start_on_head(
        self, arguments: list[str], variables: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        """Start Python on the head node; it goes when the cluster goes.

        Args:
            arguments: Python's arguments.
            variables: Environment variables beside the head's own.
            log: File for its output.
        """
        environment = {
            **self._environment_of(self.head.name),
            "RAY_ADDRESS": self.address,
            **variables,
        }
        process = processes.start([sys.executable, *arguments], environment, log)
        # Those that have ended are left out: their pids may be others' by now.
        self._head_processes = [one for one in self._head_processes if one.poll() is None]
        self._head_processes.append(process)
        self._update_reaper()
        return process

    def replace_dead_workers(self, expected: Node | None) -> list[tuple[Node, Node]]:
        """Start a node for every one that died by itself; pairs of the dead and the new.

        Args:
            expected: A node that is being preempted, and which is not replaced here.

        Raises:
            LocalError: More than 20 died since `forget_deaths`.
        """
        dead = [each for each in self._workers if not each.alive and each is not expected]
        self._deaths += len(dead)
        if self._deaths > _MAX_DEATHS:
            raise LocalError(
                f"{self._deaths} nodes died by themselves without a newer checkpoint; see that "
                f"there is enough memory, and the log of the last one, "
                f"{self._logs}/{dead[-1].name}.log"
            )
        replaced = []
        for node in dead:
            self.remove(node)
            replaced.append((node, self.add_worker()))
        return replaced

    def forget_deaths(self) -> None:
        """Count the nodes that die from now on only: the run has come further."""
        self._deaths = 0

    def stop(self) -> None:
        """Kill every node; the cluster can be started again."""
        if self._uploader is not None:
            self._uploader.terminate()  # it uploads the end of what was printed
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._uploader.wait(_LAST_UPLOAD_S)
            self._uploader = None
        processes.kill(*self._head_processes, *(node.process for node in self._nodes))
        self._head_processes = []
        for node in self._nodes:
            self._free_devices += node.devices
            shutil.rmtree(self._home / node.name, ignore_errors=True)
        self._workers, self._head = [], None
        self._update_reaper()

    def _update_reaper(self) -> None:
        self._reaper.set_processes([*self._head_processes, *(node.process for node in self._nodes)])

    @property
    def _nodes(self) -> list[Node]:
        return [*self._workers, *([self._head] if self._head else [])]

    def _start_node(self, name: str, arguments: list[str], devices: tuple[str, ...]) -> Node:
        home = self._home / name
        state = self._state_of(name)
        state.mkdir(parents=True)
        environment = self._environment_of(name)
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *arguments]
        command += ["--node-ip-address=127.0.0.1", f"--node-name={name}", f"--temp-dir={home}"]
        command += [f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        # 0: any free port. An agent retries Ray's default for 3 s where another node has it.
        command += ["--dashboard-agent-listen-port=0"]
        # 0: any free port. Ray's fixed range would be the same for all nodes of the machine.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        log = self._logs / f"{name}.log"
        began = log.stat().st_size if log.exists() else 0  # of a run that is resumed
        process = processes.start(command, environment, log)
        return Node(name, state, process, devices, log, began)

    def _state_of(self, name: str) -> Path:
        return self._home / name / "state"

    def _environment_of(self, name: str) -> dict[str, str]:
        return {
            **self._environment,
            STATE_DIRECTORY_ENV: str(self._state_of(name)),
            "NODE_NAME": name,
            "POD_NAME": name,
        }

    def _wait(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_DEADLINE_S
        while not ready():
            if not self.head.alive or time.monotonic() > deadline:
                raise LocalError(f"Ray did not start; see {self._logs}/head.log")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:  # a second Ctrl-C must not leave half of it running
            self.stop()
        self._reaper.stop()
        shutil.rmtree(self._home, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


_GRACE_S = 5.0
"""What a pod's grace period leaves after the notice."""


class Preemption:
    """Preemption of one node: notice, checkpoint, SIGTERM, kill. Polled, never blocking."""

    def __init__(self, ray: LocalRay, after_s: float) -> None:
        """Plan to preempt the newest worker of `ray` `after_s` seconds after the first step."""
        self._ray = ray
        self._after_s = after_s
        self._deadline = 0.0
        self.node: Node | None = None
        """The node that is or was preempted; None before its notice."""
        self.done = False
        """The node is gone, and another one was started, or a whole new cluster."""
        self._terminating = False

    def poll(self, first_step_time: float | None) -> None:
        """Do the next step if it is due.

        Args:
            first_step_time: Unix time of the first trained step; None before it.
        """
        if self.done or first_step_time is None:
            return
        if self.node is not None and self.node not in self._ray.workers:
            # Its cluster was stopped, as when the head dies; the next one has all its nodes.
            self.done = True
            return
        if self.node is None:
            if time.time() >= first_step_time + self._after_s and self._ray.workers:
                self.node = self._ray.workers[-1]
                self._give_notice(self.node)
        elif not self._terminating:
            saved = (self.node.state / SAVED_FILE).exists()
            if (
                saved
                or not _watched(self.node)
                or time.time() >= self._deadline
                or not self.node.alive
            ):
                self._terminating = True
                self._deadline = time.time() + _GRACE_S
                # As a kubelet does when the preStop hook has ended. The replacement does not wait,
                # unless it needs the GPUs.
                self.node.process.terminate()
                if not self.node.devices:
                    self._ray.add_worker()
        elif not self.node.alive or time.time() >= self._deadline:
            self._ray.remove(self.node)
            if self.node.devices:
                self._ray.add_worker()
            self.done = True

    def _give_notice(self, node: Node) -> None:
        """As the preStop hook: request a checkpoint if a process watches for the notice."""
        self._deadline = time.time()
        if _watched(node):
            self._deadline += NOTICE_SECONDS
            (node.state / PREEMPTION_NOTICE_FILE).write_text(str(self._deadline))


def _watched(node: Node) -> bool:
    """Whether a process there answers a notice, or has not ended since."""
    return any((node.state / WATCHERS_FOLDER).glob("*"))
