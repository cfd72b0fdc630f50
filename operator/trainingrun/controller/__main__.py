"""`python -m trainingrun.controller`: kopf with the handlers of `handlers`."""

import argparse
import asyncio
import contextlib
import socket
import sys
from typing import Any

if __name__ == "__main__":
    # kopf imports the official client wherever it is installed, as beside the command line: 22 MB
    # of which nothing is used here.
    sys.modules["kubernetes"] = None  # type: ignore[assignment]

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory

from . import handlers as handlers  # registers them
from . import logs
from .login import NoCredentials, load_credentials
from .settings import Settings, SettingsError, from_environment, variables


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
        settings = from_environment()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure(settings.operator.log_level)
    try:
        load_credentials()  # or one sentence now
    except NoCredentials as error:
        print(error, file=sys.stderr)
        return 2
    return asyncio.run(_run(settings))


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


async def _run(settings: Settings) -> int:
    own = settings.operator
    memo = kopf.Memo(stop=asyncio.Event(), crashed=asyncio.Event())
    await kopf.operator(
        memo=memo,
        memories=_NoMemories(),
        namespaces=own.namespaces,
        clusterwide=not own.namespaces,
        standalone=True,
        liveness_endpoint=f"http://{_every_address()}:{own.probe_port}/healthz",
        stop_flag=memo.stop,
    )
    return 1 if memo.crashed.is_set() else 0


class _NoMemories(ResourceMemories):
    """Nothing is remembered of an object, where kopf would keep 1.1 kB of each: its daemons, delays
    and handlers of changes, which read it, are not used.
    """

    async def recall(self, *args: Any, **options: Any) -> ResourceMemory:
        """What kopf is to know while it handles one event."""
        return await super().recall(*args, **{**options, "ephemeral": True})


def _every_address() -> str:
    """What kopf is to listen on: it takes one address, and a pod may have IPv6 ones alone."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None)
        if not any(family == socket.AF_INET for family, *_ in found):
            return "[::]"
    return "0.0.0.0"  # noqa: S104 - for the kubelet


if __name__ == "__main__":
    sys.exit(main())
