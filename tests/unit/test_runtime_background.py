"""Work beside training leaves the CPU to the threads that train."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys, threading
from trainingrun_runtime.checkpoints.background import behind_training

def found():
    inner = []
    thread = threading.Thread(target=lambda: inner.append(priority()))
    thread.start()
    thread.join()
    return [priority(), *inner]

def priority():
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    return [own, os.sched_getscheduler(0)]

os.nice(max(int(sys.argv[1]) - os.nice(0), 0))
print(json.dumps([priority(), *behind_training(found), priority()]))
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere all threads of a process have one priority"
)


def priorities(niceness: int) -> list[list[int]]:
    """Niceness and policy in a process: of its thread, of the work, of the work's own thread, and
    of its thread afterwards."""
    command = [sys.executable, "-c", PROGRAM, str(niceness)]
    found: list[list[int]] = json.loads(subprocess.check_output(command))
    return found


def test_work_beside_training_gets_a_tenth_of_its_share() -> None:
    before, work, inner, after = priorities(0)
    niceness, policy = before
    expected = [niceness + 10, policy] if niceness <= 9 else [niceness, os.SCHED_IDLE]
    assert work == inner == expected
    assert after == before


def test_a_niceness_that_leaves_no_room_below_it_makes_the_work_idle() -> None:
    before, work, inner, after = priorities(15)
    assert before == after == [15, os.SCHED_OTHER]
    assert work == inner == [15, os.SCHED_IDLE]
