"""`python -m trainingrun.controller`: the operator as a process.

kopf runs the process: signals, the order of start and clean-up, and the end of everything as soon
as one part ends, so that the kubelet starts it afresh. It watches nothing here. All kinds, the
TrainingRuns too, come from the caches of `trainingrun.cluster`: a decision needs RayJobs, pods and
nodes as of one moment, with our own writes in them, and needs to know of a deletion that happened
while the watch was down, which kopf's handlers are not told.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from ..cluster.connection import allow_many_connections, load_configuration
from ..cluster.port import ClusterError
from . import logs, serving
from .operator import Operator
from .settings import Settings, SettingsError, from_environment, variables

log = logging.getLogger(__name__)


def main() -> int:
    """Runs until SIGTERM or SIGINT.

    0 then; 1: a part of the operator ended by itself; 2: a setting or the cluster is missing.
    """
    argparse.ArgumentParser(
        prog="python -m trainingrun.controller",
        description="The TrainingRun operator. It takes its settings from the environment:",
        epilog="\n".join(f"  {name}={_shown(value)}" for name, value in variables().items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        settings = from_environment(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure(settings.operator.log_level)
    allow_many_connections()
    try:
        return asyncio.run(_run(settings))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 2


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


async def _run(settings: Settings) -> int:
    configuration = await load_configuration()
    stop = asyncio.Event()
    crashed = asyncio.Event()
    registry = kopf.OperatorRegistry()
    _wire(registry, settings, configuration, stop, crashed)
    await kopf.operator(
        registry=registry,
        settings=_kopf_settings(),
        clusterwide=True,
        standalone=True,
        stop_flag=stop,
    )
    return 1 if crashed.is_set() else 0


def _wire(
    registry: kopf.OperatorRegistry,
    settings: Settings,
    configuration: Configuration,
    stop: asyncio.Event,
    crashed: asyncio.Event,
) -> None:
    """Registers what kopf calls at the start and at the end."""
    cleanups: list[Callable[[], Awaitable[None]]] = []

    @kopf.on.login(registry=registry)
    async def log_in(**about: Any) -> kopf.ConnectionInfo | None:
        # For kopf's own look at the API's resources at the start, in the order that ours has too.
        in_pod = kopf.login_with_service_account(**about)
        return in_pod or kopf.login_with_kubeconfig(**about)

    @kopf.on.startup(registry=registry)
    async def start(**_: object) -> None:
        operator = Operator(settings, configuration)
        for application, port in (
            (serving.probes(operator), settings.operator.probe_port),
            (serving.metrics(operator), settings.operator.metrics_port),
        ):
            cleanups.append((await serving.serve(application, port)).cleanup)
        task = asyncio.create_task(operator.run(), name="operator")

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                log.critical("a part of the operator ended", exc_info=task.exception())
                crashed.set()
                stop.set()

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        task.add_done_callback(ended)
        cleanups.append(end)

    @kopf.on.cleanup(registry=registry)
    async def clean_up(**_: object) -> None:
        for cleanup in reversed(cleanups):
            await cleanup()


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no watch of CRDs and namespaces: nothing is served by kopf
    settings.posting.enabled = False  # events about runs are written after their status, not here
    return settings


if __name__ == "__main__":
    sys.exit(main())
