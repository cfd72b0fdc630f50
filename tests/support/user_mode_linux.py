"""Runs a command in a Linux of its own, in which an NFS server serves two nodes.

It is a kernel that runs as a process (Debian's User Mode Linux), so neither root nor NFS in the
machine's kernel is needed. Its root is the machine's, read-only.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.processes import ROOT
from support.tools import nfs_server

MEMORY = "1G"
LIMIT_S = 900


def run_on_nfs(version: str, command: Sequence[str], folder: Path) -> tuple[int | None, str]:
    """Run a command on a node that mounts a claim of NFS: see `nfs_init`.

    Args:
        version: of NFS, such as 4.2.
        folder: an empty one of this machine.

    Returns:
        Its exit code, and what it has printed; None: this Linux has not come so far.

    Raises:
        Unavailable: there is no User Mode Linux here.
    """
    packages = nfs_server()
    (folder / "version").write_text(version)
    (folder / "command").write_text(json.dumps(command))
    python_path = ":".join(f"{ROOT / each}" for each in ("tests", "operator", "training_images"))
    arguments = [
        *(f"mem={MEMORY}", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
        *("con=null", "con0=fd:0,fd:1", f"PYTHONPATH={python_path}", f"init={sys.executable}"),
        *("--", "-m", "support.nfs_init", f"{packages}", f"{folder}"),
    ]
    with subprocess.Popen(
        [packages / "usr/bin/linux.uml", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env={**os.environ, "TMPDIR": "/dev/shm"},  # where the kernel keeps its memory
        start_new_session=True,
    ) as kernel:
        try:
            console, _ = kernel.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # each process of it is one here
                os.killpg(kernel.pid, signal.SIGKILL)
    printed = folder / "output"
    text = printed.read_text(errors="replace") if printed.exists() else ""
    code = folder / "exit-code"
    if not code.exists():
        return None, f"{console[-2000:]}\n{text}"
    return int(code.read_text()), text
