"""When this process began."""

import os
import time
from pathlib import Path

import psutil


def stat_of(pid: int | str) -> list[str]:
    """What the kernel tells of a process behind its name: its state, and 19 later its start in
    ticks since the kernel's own; see proc_pid_stat(5).

    Args:
        pid: its number, or "self".

    Raises:
        OSError: there is no such process, or no /proc.
    """
    told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return told.rpartition(")")[2].split()  # a name may hold anything


def process_began(now: float) -> float:
    """Unix time in seconds, to a hundredth where the kernel tells it.

    Args:
        now: Unix time in seconds.
    """
    try:
        # psutil adds the time of boot, of which the kernel shows whole seconds.
        begun_s = int(stat_of("self")[19]) / os.sysconf("SC_CLK_TCK")
        return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - begun_s, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux
        return float(min(psutil.Process().create_time(), now))
