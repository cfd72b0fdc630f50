"""Which rank downloads a file that all ranks of a machine need."""

import subprocess
import sys

from trainingrun_runtime.checkpoints.shared_files import SharedFile, machine
from trainingrun_runtime.coordination.shared_downloads import SharedDownloads

STATE = SharedFile("/proc/7/fd/9", 1, 2, 3)


def test_one_rank_of_each_machine_downloads_a_file() -> None:
    downloads = SharedDownloads()
    search = downloads.begin()
    assert downloads.claim(search, "a", ["state.pt", "shard-0.json"], 9) == [
        "state.pt",
        "shard-0.json",
    ]
    assert downloads.claim(search, "a", ["state.pt", "shard-0.json"], 9) == []
    assert downloads.claim(search, "b", ["state.pt"], 9) == ["state.pt"]
    downloads.offer(search, "a", {"state.pt": STATE})
    assert downloads.offered(search, "a") == {"state.pt": STATE}
    assert downloads.offered(search, "b") == {}


def test_ranks_that_ask_in_turn_have_as_many_files_each() -> None:
    downloads = SharedDownloads()
    search, names = downloads.begin(), ["state.pt", "state-1.pt", "shard-0.json"]
    assert downloads.claim(search, "a", names, 1) == ["state.pt"]
    assert downloads.claim(search, "a", names, 1) == ["state-1.pt"]
    assert downloads.claim(search, "a", names[1:], 4) == ["shard-0.json"]
    assert downloads.claim(search, "a", [], 4) == []


def test_a_search_knows_nothing_of_the_former_one() -> None:
    """A rank that was killed has downloaded nothing for the next group."""
    downloads = SharedDownloads()
    former = downloads.begin()
    downloads.claim(former, "a", ["state.pt"], 1)
    downloads.offer(former, "a", {"state.pt": STATE})
    search = downloads.begin()
    assert downloads.offered(search, "a") == {}
    assert downloads.claim(search, "a", ["state.pt"], 1) == ["state.pt"]


def test_what_a_process_of_a_former_group_still_asks_changes_nothing() -> None:
    downloads = SharedDownloads()
    former, search = downloads.begin(), downloads.begin()
    assert downloads.claim(former, "a", ["state.pt"], 1) == ["state.pt"]
    downloads.offer(former, "a", {"state.pt": STATE})
    assert downloads.offered(former, "a") == {}
    assert downloads.offered(search, "a") == {}
    assert downloads.claim(search, "a", ["state.pt"], 1) == ["state.pt"]


def test_processes_of_one_user_on_one_machine_have_the_same_name_for_it() -> None:
    program = "from trainingrun_runtime.checkpoints.shared_files import machine; print(machine())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == machine()
