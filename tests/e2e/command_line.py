"""The command line on this machine, with the test cluster's kubeconfig."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cluster import CREDENTIALS, ROOT, forwarded
from .kube import CommandError, Kubectl

_ENTRY = "from trainingrun.cli.main import app; app()"


@contextmanager
def started(
    kubectl: Kubectl, *words: str, folder: Path | None = None, **env: str
) -> Iterator["subprocess.Popen[str]"]:
    """`trainingrun <words>` in the namespace of `kubectl`, as a process that has begun. It is ended
    with the block, if it is there still.
    """
    own = words.index("--") if "--" in words else len(words)
    all_words = (*words[:own], f"--namespace={kubectl.namespace}", *words[own:])
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images"))
    process = subprocess.Popen(
        [sys.executable, "-c", _ENTRY, *all_words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": roots, "KUBECONFIG": str(kubectl.kubeconfig), **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _interruptible() -> None:
    """Ctrl-C ends it, also where a shell has started these tests in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def trainingrun(
    kubectl: Kubectl, *words: str, folder: Path | None = None, timeout: float = 120, **env: str
) -> str:
    """Run `trainingrun <words>`; its stdout.

    Raises:
        CommandError: it failed or took longer.
    """
    with started(kubectl, *words, folder=folder, **env) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"trainingrun {' '.join(words)}: not done in time") from error
    if process.returncode:
        raise CommandError(f"trainingrun {' '.join(words)}: {errors[-2000:]}")
    return output


def with_bucket(kubectl: Kubectl, folder: Path, *words: str) -> str:
    """The same, where the command reaches the cluster's S3 server from this machine."""
    with forwarded(kubectl.within("storage"), "service/s3", 7070) as address:
        return trainingrun(
            kubectl, *words, f"--endpoint=http://{address}",
            folder=folder, AWS_REGION="us-east-1", **CREDENTIALS,
        )  # fmt: skip
