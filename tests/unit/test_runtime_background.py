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

CLIENT = """
import os, sys, time
from contextlib import suppress
from pathlib import Path
import obstore
from obstore.store import MemoryStore
from trainingrun_runtime.checkpoints.background import behind_training
from trainingrun_runtime.store.clients import start_client

os.nice(max(15 - os.nice(0), 0))
if sys.argv[1] == "first":
    behind_training(start_client)
obstore.put(MemoryStore(), "key", b"")
threads, deadline = [], time.monotonic() + 30
while not threads and time.monotonic() < deadline:  # each gives itself its name, once it runs
    for path in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            if (path / "comm").read_text().startswith("tokio"):
                threads.append(os.sched_getscheduler(int(path.name)))
print(len(threads), set(threads))
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


@pytest.mark.parametrize(("when", "policy"), [("first", os.SCHED_IDLE), ("not", os.SCHED_OTHER)])
def test_the_stores_client_is_started_to_give_way_whoever_makes_a_request(
    when: str, policy: int
) -> None:
    command = [sys.executable, "-c", CLIENT, when]
    threads, policies = subprocess.check_output(command, text=True).split(maxsplit=1)
    assert int(threads) > 0
    assert policies.strip() == str({policy})
