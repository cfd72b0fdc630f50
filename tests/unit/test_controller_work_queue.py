"""The queue: each run once, one worker at a time, nothing lost, real backoff."""

import asyncio

import pytest

from trainingrun.controller.work_queue import WorkQueue

A, B = ("ns", "a"), ("ns", "b")


async def test_a_run_that_is_queued_twice_is_reconciled_once():
    queue = WorkQueue()
    queue.add(A)
    queue.add(A)
    queue.add(B)
    assert [await queue.get(), await queue.get()] == [A, B]
    assert len(queue) == 0


async def test_changes_during_a_reconcile_bring_another_but_never_two_at_a_time():
    queue = WorkQueue()
    queue.add(A)
    key = await queue.get()
    queue.add(A)
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not second.done(), "the first reconcile is still running"
    queue.done(key)
    assert await second == A


async def test_a_run_comes_back_when_it_asked_to():
    queue = WorkQueue()
    queue.add(A)
    queue.done(await queue.get(), requeue_after_s=0.01)
    async with asyncio.timeout(5):
        assert await queue.get() == A


async def test_failures_wait_twice_as_long_each_time_and_success_resets_them():
    queue = WorkQueue(retry_initial_s=0.01, retry_max_s=0.05)
    waits = []
    queue.add(A)
    for _ in range(5):
        waits.append(queue.failed(await queue.get()))
    assert waits == pytest.approx([0.01, 0.02, 0.04, 0.05, 0.05])
    queue.done(await queue.get())
    queue.add(A)
    assert queue.failed(await queue.get()) == pytest.approx(0.01)


async def test_a_reconcile_makes_the_timer_that_was_set_before_it_void():
    queue = WorkQueue()
    queue.add(A)
    queue.done(await queue.get(), requeue_after_s=60)
    queue.add(A)
    queue.done(await queue.get())
    assert queue._timers == {}


async def test_a_cancelled_worker_takes_no_run_with_it():
    queue = WorkQueue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add(A)
    first.cancel()
    async with asyncio.timeout(5):
        assert await second == A
    with pytest.raises(asyncio.CancelledError):
        await first
