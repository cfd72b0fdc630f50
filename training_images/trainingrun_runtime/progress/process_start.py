"""When this process began."""

import os
import time
from pathlib import Path

import psutil


def process_began(now: float) -> float:
    """Unix time in seconds, to a hundredth where the kernel tells it.

    Args:
        now: Unix time in seconds.
    """
    try:
        # psutil adds the time of boot, of which the kernel shows whole seconds.
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begun_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return now - max(time.clock_gettime(time.CLOCK_BOOTTIME) - begun_s, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):  # no Linux
        return float(min(psutil.Process().create_time(), now))
