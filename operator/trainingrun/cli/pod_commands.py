"""What reaches into the pods of a run: a shell, and Ray's dashboard. Both call kubectl."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainingrun_protocol.contract import (
    RANK_PODS_FILE,
    STACKS_REQUEST_FILE,
    STATE_DIRECTORY,
    STATE_DIRECTORY_ENV,
)

from ..api.errors import RunError
from ..local.run_line import phase
from ..local.terminal_text import counted, plain
from ..rendering import names
from . import views
from .common import Name, connect
from .dashboard_proxy import Proxy
from .errors import CliError, say
from .local_server import serving
from .sources import taking

if TYPE_CHECKING:
    from ..client.kube import Kube

_DASHBOARD_PORT = 8265
_ANSWER_S = 90.0
"""For a script in the head's pod: of a lost node none ever ends. `_REQUEST_STACKS` takes a
minute at most."""
_SHELL = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; fi; exec sh"]

_RANK_PODS = f"cat ${{{STATE_DIRECTORY_ENV}:-{STATE_DIRECTORY}}}/{RANK_PODS_FILE}"
_REQUEST_STACKS = f"""
wanted=${{{STATE_DIRECTORY_ENV}:-{STATE_DIRECTORY}}}/{STACKS_REQUEST_FILE}
touch "$wanted" || exit 1
tries=0
while [ -e "$wanted" ]; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ]; then
    rm -f "$wanted"
    echo "no driver answers within a minute; try again when it trains" >&2
    exit 1
  fi
  sleep 0.2
done
"""
"""Asks for the stacks, in the head's pod."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(dashboard)
    app.command()(shell)


@taking(connect)
def dashboard(
    kube: "Kube",
    name: Name,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open it in the browser.")
    ] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of this machine.", show_default="a free one")
    ] = 0,
) -> None:
    """Open Ray's dashboard of a TrainingRun that has a head now, until Ctrl-C."""
    head = kube.head(kube.run(name))
    pod, token = str(head["metadata"]["name"]), kube.ray_token(head)
    with (
        _forwarded(_kubectl(kube), pod) as (upstream, output),
        serving(proxy := Proxy(port, upstream, token)),
    ):
        typer.echo(f"Ray's dashboard of {name}: {proxy.link()}")
        say("One browser can open it, once; Ctrl-C ends it.")
        if browser and not webbrowser.open(proxy.link()):
            say("No browser is found here: open the address yourself.")
        try:
            said = _last_line(output)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
    raise CliError(
        f"the connection to pod {pod} has ended{said}; run this again when {name} has a head"
    )


@contextlib.contextmanager
def _forwarded(kubectl: list[str], pod: str) -> Iterator[tuple[int, Iterator[str]]]:
    """A port of 127.0.0.1 that leads to the dashboard, and what kubectl prints until it ends."""
    command = [*kubectl, "port-forward", "--address=127.0.0.1", f"pod/{pod}", f":{_DASHBOARD_PORT}"]
    # Whoever ends this command ends kubectl, too.
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output = iter(process.stdout or ())
            said = next(output, "it says nothing")  # Forwarding from 127.0.0.1:40123 -> 8265
            if not said.startswith("Forwarding from "):
                raise CliError(f"kubectl cannot reach pod {pod}: {plain(said)}")
            yield int(said.split()[2].rpartition(":")[2]), output
        finally:
            process.terminate()
            signal.signal(signal.SIGTERM, former)


def _last_line(output: Iterator[str]) -> str:
    """The last line that is no message about a connection, after a colon; else nothing."""
    last = ""
    for line in output:
        last = last if line.startswith("Handling connection") else line
    return f": {plain(last)}" if last.strip() else ""


@taking(connect)
def shell(
    kube: "Kube",
    name: Name,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command, after --.", show_default="bash, else sh"),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Number of the rank.", show_default="the head")
    ] = None,
) -> None:
    """Open a shell, or run a command, in the pod of a rank; as `kubectl exec` does."""
    run = kube.run(name)
    if rank is None:
        pod, container = str(kube.head(run)["metadata"]["name"]), names.HEAD_CONTAINER
    else:
        pod, container = _pod_of(kube, run, rank), names.WORKER_CONTAINER
    kubectl = _kubectl(kube)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    words = ["exec", "-it" if terminal else "-i", pod, f"--container={container}", "--"]
    # kubectl takes the place of this process: signals, the terminal's size, the exit code.
    os.execv(kubectl[0], [*kubectl, *words, *(command or _SHELL)])  # noqa: S606 - as the user


def request_stacks(kube: "Kube", run: dict[str, Any]) -> None:
    """Have the driver keep the stacks of all ranks, and wait until it has.

    Raises:
        CliError: It does not, or may not be asked.
    """
    pod = str(kube.head(run)["metadata"]["name"])
    done = _on_head(kube, pod, _REQUEST_STACKS)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CliError(f"the driver in pod {pod} cannot be asked: {plain(lines[0])}")


def _on_head(kube: "Kube", pod: str, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in the head's pod.

    Raises:
        CliError: kubectl is not installed, or the pod does not answer.
    """
    words = ["exec", pod, f"--container={names.HEAD_CONTAINER}", "--", "sh", "-c", script]
    try:
        return subprocess.run(
            [*_kubectl(kube), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        raise CliError(
            f"pod {pod} has not answered kubectl exec within {_ANSWER_S:.0f} s; is its node lost?"
        ) from None


def _pods_on_head(kube: "Kube", run: dict[str, Any]) -> dict[int, str]:
    """The pod of each rank as the head has it; empty: it has none, or does not answer."""
    try:
        pod = str(kube.head(run)["metadata"]["name"])
        found = json.loads(_on_head(kube, pod, _RANK_PODS).stdout)
        return {int(rank): str(name) for rank, name in found.items()}
    except (RunError, ValueError, AttributeError):
        return {}


def _pod_of(kube: "Kube", run: dict[str, Any], rank: int) -> str:
    """Name of the pod in which the rank runs now.

    Raises:
        CliError: It is not known, or gone.
    """
    name, status = run["metadata"]["name"], run.get("status") or {}
    rows = (status.get("progress") or {}).get("ranks") or []
    workers = run["spec"].get("workers", {}).get("count", 1)
    if rank >= workers:
        raise CliError(f"{name} has no rank {rank}: it has {counted(workers, 'rank')}, from 0")
    pods = {row["rank"]: row.get("pod") for row in rows}
    if rank not in pods:  # the status has a few of many
        pods |= _pods_on_head(kube, run)
    if not rows and rank not in pods:
        raise CliError(views.why_no_ranks(run))
    if rank not in pods:
        known = str(views.ranks_left_out(rows, run)).rstrip(".")
        raise CliError(f"the status does not have the pod of rank {rank}: {known}")
    if not pods[rank]:
        raise CliError(f"rank {rank} of {name} does not say in which pod it runs")
    if pods[rank] not in {pod["metadata"]["name"] for pod in kube.pods(run)}:
        raise CliError(
            f"rank {rank} of {name} ran in pod {pods[rank]}, which is gone; {name} is "
            f"{phase(run)}: try again when it trains"
        )
    return str(pods[rank])


def _kubectl(kube: "Kube") -> list[str]:
    """The command kubectl, for the same cluster and namespace.

    Raises:
        CliError: It is not installed.
    """
    found = shutil.which("kubectl")
    if found is None:
        raise CliError("kubectl is not found on PATH; this command needs it")
    chosen = [f"--context={kube.context}"] if kube.context else []
    return [found, *chosen, f"--namespace={kube.namespace}"]
