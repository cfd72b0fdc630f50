"""How full a rank's memory is, and how fast it grows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainingrun_runtime.progress.rank_measures import (
    MemoryGrowth,
    MemoryUse,
    read_memory,
    read_oom_kills,
)

MIB = 2**20


def growth_of(used: Callable[[float], float], seconds: int = 600) -> int | None:
    growth = MemoryGrowth()
    for now in range(0, seconds + 1, 10):
        growth.add(now, round(used(now)))
    return growth.per_hour()


def test_what_this_process_holds_is_read(tmp_path: Path) -> None:
    before, limit = read_memory(tmp_path)  # no control group here
    assert limit is None
    held = bytearray(100 * MIB)
    held[::4096] = b"x" * len(held[::4096])  # every page is touched
    assert read_memory(tmp_path)[0] - before >= 90 * MIB


@pytest.mark.parametrize(
    ("own", "group", "limit_file", "used_file", "unlimited"),
    [
        ("0::/pod", "pod", "memory.max", "memory.current", "max"),
        ("0::/pod", "", "memory.max", "memory.current", "max"),
        (
            "4:memory:/pod\n0::/",
            "memory/pod",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "9223372036854771712",
        ),
        (
            "4:memory:/pod\n0::/",
            "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "9223372036854771712",
        ),
    ],
    ids=["version 2", "version 2, as the root", "version 1", "version 1, as the root"],
)
def test_of_a_container_the_cache_of_files_is_not_counted(
    tmp_path: Path, own: str, group: str, limit_file: str, used_file: str, unlimited: str
) -> None:
    cgroups, which = tmp_path / "groups", tmp_path / "own"
    which.write_text(f"{own}\n")
    folder = cgroups / group
    folder.mkdir(parents=True)
    (folder / limit_file).write_text(f"{4096 * MIB}\n")
    (folder / used_file).write_text(f"{1000 * MIB}\n")
    stat = f"anon 5\ninactive_file {300 * MIB}\nactive_file {100 * MIB}\n"
    (folder / "memory.stat").write_text(stat)
    assert read_memory(cgroups, which) == (600 * MIB, 4096 * MIB)
    (folder / limit_file).write_text(f"{unlimited}\n")
    assert read_memory(cgroups, which)[1] is None


def test_steady_growth_is_found() -> None:
    assert growth_of(lambda now: 500 * MIB + now * MIB) == 3600 * MIB


@pytest.mark.parametrize(
    "used",
    [
        pytest.param(lambda now: 500 * MIB, id="constant"),
        pytest.param(lambda now: 500 * MIB + (now >= 400) * 900 * MIB, id="allocated at once"),
        pytest.param(lambda now: min(now, 100) * 20 * MIB, id="grows at first"),
        pytest.param(lambda now: 500 * MIB - now * MIB, id="shrinks"),
    ],
)
def test_what_is_allocated_once_is_no_growth(used: Callable[[float], float]) -> None:
    assert growth_of(used) is None


def test_growth_is_not_known_in_the_first_minutes() -> None:
    assert growth_of(lambda now: now * MIB, seconds=170) is None


def test_the_hours_left_are_those_to_the_limit() -> None:
    assert MemoryUse(used=1, limit=5, per_hour=8).hours_left == 0.5
    assert MemoryUse(used=1, limit=None, per_hour=8).hours_left == float("inf")
    assert MemoryUse(used=1, limit=5, per_hour=None).hours_left == float("inf")


@pytest.mark.parametrize(
    ("own", "place", "counters"),
    [
        pytest.param(
            "0::/\n", "memory.events", "low 0\nmax 2\noom 1\noom_kill 3\n", id="version 2"
        ),
        pytest.param(
            "0::/kubepods/pod-1/abc\n",
            "kubepods/pod-1/abc/memory.events",
            "oom 1\noom_kill 3\noom_group_kill 0\n",
            id="version 2, with the node's names",
        ),
        pytest.param(
            "5:cpu,cpuacct:/x\n4:memory:/abc\n0::/\n",
            "memory/abc/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            id="version 1",
        ),
        pytest.param(
            "4:memory:/kubepods/pod-1/abc\n",
            "memory/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            id="version 1, mounted in the container",
        ),
    ],
)
def test_the_kernel_s_count_of_ended_processes_is_read(
    own: str, place: str, counters: str, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(own)
    file = tmp_path / "fs" / place
    file.parent.mkdir(parents=True)
    assert read_oom_kills(tmp_path / "fs", tmp_path / "cgroup") is None
    file.write_text(counters)
    assert read_oom_kills(tmp_path / "fs", tmp_path / "cgroup") == 3
    file.write_text("oom_kill_disable 0\nunder_oom 0\n")  # of a kernel before 4.13
    assert read_oom_kills(tmp_path / "fs", tmp_path / "cgroup") is None
