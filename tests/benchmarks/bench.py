"""What training pays for being able to go on, beside torchrun and Ray Train alone.

    make bench                                        # all parts
    python tests/benchmarks/bench.py --only stall     # one of them, or several

Two workers on this machine. A step takes 100 ms: 15 of computing, and a wait, as for an
accelerator. Whatever trains beside us has no more on the machine than it needs. The parts:

throughput: steps per second without checkpoints, ours and torchrun's in turns of 60 steps; in
    torchrun's turns all processes of Ray and of ours are stopped. Then Ray Train alone and
    torchrun: what Ray's own processes take.
stall: 200 MB of state every 10 s to an S3 server on this machine; a synchronous `torch.save` to
    disk under torchrun, Ray Train alone, ours. Every step counts: of 100, the 60 from the one that
    makes a checkpoint, against the 40 after them.
start: from the start of the driver to the first step; Ray Train alone and ours.
kill: `kill -9` of one rank, until the next step; Ray Train alone and ours. Measured with start.
restore: 200 MB that every rank has whole, from the search for a checkpoint until the session is
    made; both ranks are on this machine, so one reads them for both. Beside it each rank reads them
    in parallel, in the same processes.
output: rank 1 prints a line in each step, or 5,000, which are 50,000 lines a second, in turns while
    the process that keeps them goes on and while it is stopped; and its CPU.
sharded: 2 GB, of which each of two ranks has a half (FSDP2); the same, and the save, beside a plain
    upload of the same bytes and beside torch.distributed.checkpoint to the same bucket.
object: 512 MB of one rank, written and read, with as many requests at once on both sides.
checkpoints: restore, sharded and object.

The first 15 s of a training do not count: a process for the next worker is started then. Ray
Train alone has the same settings of Ray as ours, in which losses are noticed early.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "training_images", "tests")]

import objects  # noqa: E402
import restore_times  # noqa: E402
from sides import Measured, Sides, Training, two_workers  # noqa: E402
from step_times import Stall, Windows, gaps, stall  # noqa: E402

from support import benchmark_page  # noqa: E402

STEP: dict[str, Any] = {
    "width": 512,
    "ballast": 0,
    "wait_seconds": 0.085,
    "saves": [],
    "pauses": [],
}
WARM_UP, TURN = 150, 60
"""Steps that do not count, and steps of a turn."""
SHORT: dict[str, Any] = {
    **STEP,
    "width": 16,
    "wait_seconds": 0.1,
    "steps": WARM_UP + 15,
    "kill_at": WARM_UP + 5,
}
SETTLE_S = 1.0
"""After Ray was stopped, for what it has put off meanwhile."""
WINDOWS = Windows()
LEAST_ROUNDS = 3
"""Fewer are a trial, and do not get into the page, which says three."""
NO_SLOWER = ">= 0.98"
"""Target for the steps per second of ours."""


class Row(NamedTuple):
    """A line of the table."""

    what: str
    ours: str
    beside: str = ""
    ratio: str = ""
    target: str = ""


def throughput(sides: Sides, rounds: int) -> Iterator[Row]:
    """Steps per second beside torchrun's: ours, and those of Ray Train alone."""
    for who, start in (("ours", sides.ours), ("Ray Train alone", sides.plain)):
        pairs, target = _turns(sides, start, rounds), NO_SLOWER if who == "ours" else ""
        yield _rate(f"steps per second, {who} beside torchrun", pairs, statistics.fmean, target)
        what = f"the same of the median step, {who} beside torchrun"
        yield _rate(what, pairs, statistics.median, target)


def _turns(
    sides: Sides, start: Callable[[dict[str, Any]], Training], rounds: int
) -> list[list[list[float]]]:
    """Seconds of each step in each turn: of this side, and of torchrun."""
    turns = 2 * rounds
    pauses = [WARM_UP - 1 + n * TURN for n in range(turns)]
    load = {**STEP, "steps": WARM_UP + turns * TURN, "pauses": pauses}
    on_ray, torchrun = start(load), sides.torchrun(load)
    for side in (on_ray, torchrun):
        side.wait_for(1, WARM_UP)
    for number in range(2 * turns):
        turn = number // 2
        if not _is_first(number):  # on Ray, torchrun, torchrun, on Ray …
            with sides.without_ray(on_ray):
                _take_turn(torchrun, turn)
            time.sleep(SETTLE_S)
        else:
            _take_turn(on_ray, turn)
    both = zip(on_ray.wait().turns[1:], torchrun.wait().turns[1:], strict=True)
    return [[gaps(turn) for turn in pair] for pair in both]


def _rate(
    what: str,
    pairs: list[list[list[float]]],
    average: Callable[[list[float]], float],
    target: str,
) -> Row:
    found = [[average(gaps) for gaps in pair] for pair in pairs]
    mine, theirs = (statistics.median(side) for side in zip(*found, strict=True))
    ratio = _spread([b / a for a, b in found], ".3f")
    return Row(what, f"{1 / mine:.3f}", f"{1 / theirs:.3f}", ratio, target)


def _take_turn(side: Training, turn: int) -> None:
    side.give_turn(turn + 1)
    side.wait_for(turn + 2, TURN)


def stalls(sides: Sides, rounds: int) -> Iterator[Row]:
    """Training time that checkpoints take."""

    def measured(
        start: Callable[[dict[str, Any]], Training], warm_up: int, count: int, **more: Any
    ) -> Stall:
        saves = WINDOWS.saves(warm_up, count)
        load = {**STEP, "ballast": 200, "saves": saves, "steps": WINDOWS.steps(saves), **more}
        return stall(start(load).wait().steps, saves, WINDOWS)

    saved = measured(sides.torchrun, WARM_UP // 3, rounds, save=str(sides.folder))
    mine = measured(sides.ours, WARM_UP, 2 * rounds)
    yield Row(
        "share of the time, 200 MB every 10 s, beside torch.save to disk",
        _spread(mine.shares, ".2%"),
        _spread(saved.shares, ".2%"),
        f"{mine.each_s / saved.each_s:.3f}",
        "<= 1.50%",
    )
    yield Row("the step that makes it is longer by, beside torch.save", *_milliseconds(mine, saved))
    plain = measured(sides.plain, WARM_UP // 3, rounds)
    yield Row(
        "share of the time, beside Ray Train alone",
        f"{statistics.median(mine.shares):.2%}",
        _spread(plain.shares, ".2%"),
        f"{mine.each_s / plain.each_s:.3f}",
    )
    yield Row("the step is longer by, beside Ray Train alone", *_milliseconds(mine, plain))


def _milliseconds(mine: Stall, other: Stall) -> tuple[str, str, str]:
    a, b = mine.at_once_s, other.at_once_s
    return f"{a * 1e3:.0f} ms", f"{b * 1e3:.0f} ms", f"{a / b:.3f}"


def outputs(sides: Sides, rounds: int) -> Iterator[Row]:
    """Steps of a training that prints, beside the same while nothing keeps what it prints."""
    for lines, what in ((1, "prints a line in each step"), (5000, "prints 50,000 lines a second")):
        turns = 4 * rounds
        pauses = [WARM_UP - 1 + n * TURN for n in range(turns)]
        load = {**STEP, "steps": WARM_UP + turns * TURN, "pauses": pauses, "prints": lines}
        side, used_s = sides.ours(load), 0.0
        side.wait_for(1, WARM_UP)
        for number in range(turns):
            before = sides.follower_cpu_s()
            with nullcontext() if _is_first(number) else sides.without_follower():
                _take_turn(side, number)
            used_s += sides.follower_cpu_s() - before
        every = [gaps(turn) for turn in side.wait().turns[1:]]
        kept = [turn for number, turn in enumerate(every) if _is_first(number)]
        alone = [turn for number, turn in enumerate(every) if not _is_first(number)]
        pairs = [list(pair) for pair in zip(kept, alone, strict=True)]
        beside = f"steps per second where a rank {what}, kept beside not kept"
        yield _rate(beside, pairs, statistics.fmean, NO_SLOWER)
        of_a_step = used_s / (len(kept) * TURN)
        yield Row(f"CPU of a step to keep what a rank {what}", f"{of_a_step * 1e3:.2f} ms")


def _is_first(turn: int) -> bool:
    """Which of two sides has a turn: the first, the second, the second, the first …"""
    return (turn + 1) // 2 % 2 == 0


def losses(sides: Sides, rounds: int) -> list[Row]:
    """A start and a killed rank, beside Ray Train alone."""
    every = in_turn(rounds, (sides.ours, sides.plain), SHORT)
    return [
        _seconds(
            "start to first step, beside Ray Train alone",
            [[one.first_step_s for one in pair] for pair in every],
        ),
        _seconds(
            "kill -9 to next step, beside Ray Train alone",
            [[one.next_step_s for one in pair] for pair in every],
        ),
    ]


def in_turn(
    rounds: int, sides: Iterable[Callable[[dict[str, Any]], Training]], load: dict[str, Any]
) -> list[list[Measured]]:
    """What each side measured, round by round; every second round the other way round."""
    order = list(enumerate(sides))
    found: list[list[Measured]] = []
    for number in range(rounds):
        one = {index: side(load).wait() for index, side in (order[::-1] if number % 2 else order)}
        found.append([one[index] for index in sorted(one)])
    return found


def restores(sides: Sides, rounds: int, function: str) -> list[Row]:
    """A restore beside a plain parallel read of the same bytes, and the save before it."""
    found = restore_times.measure(sides, function, rounds)
    size = f"{found.total_bytes / 1e9:.1f} GB"
    kind = "sharded over 2 ranks" if function == "sharded" else "whole on each rank"
    pairs = [list(pair) for pair in zip(found.restore_s, found.read_s, strict=True)]
    reads = "a read of the same bytes" if function == "sharded" else "each rank's read of all bytes"
    what = f"restore of {size}, {kind}, beside {reads}"
    rows = [_seconds(what, pairs)._replace(target="<= 1.5" if function == "sharded" else "<= 1.8")]
    if function == "sharded":
        save = f"save of {size}, from the end of its step until it is committed"
        rows += [
            Row(f"save of {size}: training waits", f"{found.stall_s:.2f} s"),
            _one_beside(
                f"{save}, beside a plain upload", found.commit_s, found.plain_save_s
            )._replace(target="<= 1.3"),
            _one_beside(
                f"{save}, beside torch.distributed.checkpoint",
                found.commit_s,
                found.distributed_save_s,
            )._replace(target="<= 0.6"),
            Row(
                "memory of a rank: in training, at most in the save, in the restore",
                f"{found.base_mb:.0f}, {found.save_mb:.0f}, {found.restore_mb:.0f} MB",
                f"its state: {found.rank_bytes / 1e6:.0f} MB",
            ),
        ]
    return rows


def _one_beside(what: str, ours_s: float, others_s: list[float]) -> Row:
    ratio = _spread([ours_s / other for other in others_s], ".2f")
    return Row(what, f"{ours_s:.1f} s", f"{statistics.median(others_s):.1f} s", ratio)


def one_object(sides: Sides, rounds: int) -> Iterator[Row]:
    """One rank's object of 512 MB."""
    found = objects.measure(sides.awaited_s3, 512, 2 * rounds + 1)
    for what, pair, target in (
        ("written, beside the same requests without a digest", found.written, "<= 1.1"),
        ("written to a sink, beside its digest alone", found.sunk, ""),
        ("read and verified, beside the same requests", found.verified, "<= 1.15"),
        ("read for a restore, beside the same requests", found.fetched, ""),
    ):
        ours, beside = (objects.rate(found.size, side) for side in pair)
        ratio = f"{_spread(objects.ratios(pair), '.2f')} of the time"
        yield Row(f"512 MB {what}", ours, beside, ratio, target)


def _seconds(what: str, pairs: list[list[float]]) -> Row:
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(what, f"{mine:.2f} s", f"{theirs:.2f} s", _spread([a / b for a, b in pairs], ".2f"))


def _spread(found: list[float], form: str) -> str:
    return f"{statistics.median(found):{form}} ({min(found):{form}} to {max(found):{form}})"


PARTS: dict[str, Callable[[Sides, int], Iterable[Row]]] = {
    "throughput": throughput,
    "stall": stalls,
    "output": outputs,
    "start": losses,
    "kill": losses,
    "object": one_object,
    "restore": lambda sides, rounds: restores(sides, rounds, "whole"),
    "sharded": lambda sides, rounds: restores(sides, rounds, "sharded"),
}


GROUPS = {"checkpoints": ["object", "restore", "sharded"]}
"""Parts that are measured together."""


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = [*PARTS, *GROUPS]
    parser.add_argument("--only", nargs="+", choices=choices, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    # `timeout` ends this program so: what it has started has to end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    began = time.monotonic()
    print("| what | TrainingRun | beside it | ratio | target |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch, two_workers(Path(scratch)) as sides:
        rows: list[Row] = []
        parts = [part for name in arguments.only for part in GROUPS.get(name, [name])]
        for measure in dict.fromkeys(PARTS[part] for part in parts):
            for row in measure(sides, arguments.rounds):
                print(f"| {' | '.join(row)} |", flush=True)
                rows.append(row)
                if arguments.rounds >= LEAST_ROUNDS:
                    benchmark_page.write("training", rows)
    print(f"\nMeasured in {time.monotonic() - began:.0f} s, ratios with the least and the largest.")


if __name__ == "__main__":
    main()
