"""Idle accelerators are said, with what explains it. There is no GPU here: NVML is a fake."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray._private.thirdparty.pynvml as rays_nvml

from trainingrun_runtime.coordinator.rank_comparison import RankComparison, RankPlace
from trainingrun_runtime.progress.rank_measures import (
    WINDOW_S,
    AcceleratorSamples,
    AcceleratorUse,
    RankTimes,
)
from trainingrun_runtime.ray_internals.accelerators import GpuUtilization

PLACES = {0: RankPlace("", "a", ""), 1: RankPlace("", "b", "")}


class FakeNvml:
    """What is called of NVML, with GPUs of which each is as busy as `percent` says, by its id."""

    def __init__(self, percent: dict[int | bytes, int]) -> None:
        self.percent = percent

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> bytes:  # noqa: N802
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: int | bytes) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.percent[handle])


def warnings(uses: dict[int, AcceleratorUse], times: RankTimes | None = None) -> list[str]:
    ranks = RankComparison(2)
    for rank, use in uses.items():
        ranks.accelerators[rank] = use
    if times is not None:
        ranks.times(1, times, 0.0)
    found: list[str] = ranks.findings(PLACES, 0.0)["warnings"]
    return found


def test_the_use_of_a_worker_s_own_gpus_is_read_from_nvml() -> None:
    nvml = FakeNvml({0: 99, 1: 20, b"GPU-1a2b": 60})
    assert GpuUtilization(["1", "GPU-1a2b"], nvml).read() == pytest.approx(0.4)
    assert GpuUtilization([], nvml).read() is None


def test_a_gpu_that_cannot_be_read_is_not_asked_again() -> None:
    nvml = FakeNvml({})
    gpus = GpuUtilization(["0"], nvml)
    assert gpus.read() is None
    nvml.percent[0] = 50
    assert gpus.read() is None


def test_ray_s_binding_has_what_is_called() -> None:
    called = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert len(called) == 4
    assert all(callable(getattr(rays_nvml, name)) for name in called)


def test_the_mean_goes_back_some_minutes() -> None:
    samples = AcceleratorSamples()
    assert samples.add(0.0, 1.0) == AcceleratorUse(1.0, 0.0)
    assert samples.add(10.0, 0.0) == AcceleratorUse(0.5, 10.0)
    assert samples.add(WINDOW_S + 5.0, 0.2) == AcceleratorUse(0.1, WINDOW_S - 5.0)


def test_the_rank_whose_accelerators_compute_least_is_named() -> None:
    idle = {0: AcceleratorUse(0.05, WINDOW_S), 1: AcceleratorUse(0.02, WINDOW_S)}
    assert warnings(idle) == [
        "the accelerators of rank 1 on node b are idle, as are those of another rank: they "
        "computed 2% of the last 5 minutes; no wait for data or for other ranks that is measured "
        "explains it: see whether the model is on the accelerator, and whether a larger "
        "batch_size fits"
    ]


@pytest.mark.parametrize(
    ("times", "cause"),
    [
        pytest.param(
            RankTimes(0.4, 0.3, 0.62),
            "the rank waits for data in 62% of the time in steps: give its loader more processes "
            "(num_workers), or load with Ray Data",
            id="data",
        ),
        pytest.param(
            RankTimes(0.4, 0.3, 0.1),
            "the rank waits for gradients of other ranks in 75% of the time in steps: see whether "
            "a rank is slow, or the network",
            id="other ranks",
        ),
        pytest.param(
            RankTimes(0.4, 0.1, 0.1),
            "no wait for data or for other ranks that is measured explains it: see whether the "
            "model is on the accelerator, and whether a larger batch_size fits",
            id="neither",
        ),
    ],
)
def test_what_the_rank_waits_for_is_said(times: RankTimes, cause: str) -> None:
    [warning] = warnings({1: AcceleratorUse(0.02, WINDOW_S)}, times)
    assert warning == (
        "the accelerators of rank 1 on node b are idle: they computed 2% of the last 5 minutes; "
        + cause
    )


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(AcceleratorUse(0.0, WINDOW_S / 2), id="not for long enough"),
        pytest.param(AcceleratorUse(0.1, WINDOW_S), id="it computes"),
    ],
)
def test_accelerators_that_are_not_idle_for_long_are_not_named(use: AcceleratorUse) -> None:
    assert warnings({0: use}) == []


def test_each_rank_s_row_has_it() -> None:
    ranks = RankComparison(2)
    ranks.accelerators[0] = AcceleratorUse(0.25, 10.0)
    [row] = ranks.findings(PLACES, 0.0)["ranks"]
    assert (row.rank, row.accelerator_share) == (0, 0.25)
