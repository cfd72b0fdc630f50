"""The driver's threads: none ends before the driver without anybody knowing."""

import threading

import pytest

from trainingrun_runtime.driver import background
from trainingrun_runtime.driver.background import Background


def test_a_thread_that_an_error_has_ended_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_AGAIN_S", 0.01)
    begun: list[int] = []
    again = threading.Event()

    def work(ended: threading.Event) -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise KeyError("no such suspension")
        again.set()
        ended.wait()

    running = Background()
    running.start(suspend=work)
    assert again.wait(30)
    running.join()
    assert begun == [0, 1, 2]


def test_a_thread_that_an_error_ends_with_the_driver_is_not_begun_again() -> None:
    begun: list[int] = []

    def work(ended: threading.Event) -> None:
        begun.append(1)
        ended.wait()
        raise RuntimeError("Ray is shut down")

    running = Background()
    running.start(losses=work)
    running.join()
    assert begun == [1]


def test_a_thread_that_is_done_is_not_begun_again() -> None:
    begun: list[int] = []
    running = Background()
    running.start(prestart=lambda _: begun.append(1))
    for thread in running._threads:
        thread.join(30)
    running.join()
    assert begun == [1]
