"""The queue: each run once, one worker at a time, nothing lost, real backoff."""

import asyncio

import pytest

from trainingrun.controller.work_queue import MOST_SLOW, WorkQueue

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


async def begun(queue: WorkQueue) -> list[tuple[str, str]]:
    """The runs that may begin now, each in a worker of its own."""
    workers = [asyncio.create_task(queue.get()) for _ in range(60)]
    for _ in range(2):  # `get` lets others run first
        await asyncio.sleep(0)
    found = [worker.result() for worker in workers if worker.done()]
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return found


async def turn_slow(queue: WorkQueue, number: int) -> None:
    """Waits until so many reconciles have turned out to be slow."""
    async with asyncio.timeout(5):
        while len(queue._lanes._slow_now) < number:  # noqa: ASYNC110 - a timer has to fire
            await asyncio.sleep(0.001)


async def test_slow_runs_hold_up_no_run_of_another_namespace():
    queue = WorkQueue(parallel=2, slow_s=0.01)
    slow = [("slow", str(number)) for number in range(60)]
    for key in slow:
        queue.add(key)
    first = await begun(queue)
    assert first == slow[:2], "nobody knows yet that they are slow"
    await turn_slow(queue, 2)
    queue.add(A)
    later = await begun(queue)
    assert A in later
    queue.done(A)
    assert len(later) + len(first) == MOST_SLOW + 1, "new runs beside slow ones are slow, too"
    assert await begun(queue) == [], "the others wait for one of these to end"
    queue.done(first[0])
    assert len(await begun(queue)) == 1
    queue.close()


async def test_a_run_that_is_known_to_be_quick_is_not_held_up_by_slow_ones_beside_it():
    queue = WorkQueue(parallel=2, slow_s=0.5)
    queue.add(A)
    queue.done(await queue.get())
    slow = [(A[0], f"slow-{number}") for number in range(60)]
    for key in slow:
        queue.add(key)
    await turn_slow(queue, len(await begun(queue)))
    await begun(queue)
    queue.add(A)
    assert await begun(queue) == [A]
    queue.close()


async def test_a_run_is_quick_again_after_a_quick_reconcile():
    queue = WorkQueue(parallel=2, slow_s=0.5)
    queue.add(A)
    key = await queue.get()
    await turn_slow(queue, 1)
    queue.done(key)
    assert queue._lanes.is_slow(A)
    queue.add(A)
    queue.done(await queue.get())
    assert not queue._lanes.is_slow(A)
    queue.forget(A)
    assert not queue._lanes.is_slow(("ns", "another"))
    queue.close()


async def test_many_runs_of_one_namespace_hold_up_no_run_of_another_one():
    queue = WorkQueue(parallel=1)
    many = [("many", str(number)) for number in range(500)]
    for key in many:
        queue.add(key)
    queue.add(A)
    order = []
    for _ in range(3):
        order.append(await queue.get())
        queue.done(order[-1])
    assert order == [many[0], A, many[1]], "namespaces take turns, in order within each"
    queue.close()


async def test_others_run_between_reconciles_that_wait_for_nothing():
    """Such as the renewal of the Lease, while thousands of runs have nothing to do."""
    queue, order = WorkQueue(), list[str]()
    for number in range(3):
        queue.add(("ns", str(number)))

    async def work() -> None:
        for _ in range(3):
            key = await queue.get()
            order.append("reconciled")
            queue.done(key)

    async def renew() -> None:
        for _ in range(3):
            order.append("renewed")
            await asyncio.sleep(0)

    await asyncio.gather(work(), renew())
    assert order[:4] == ["renewed", "reconciled", "renewed", "reconciled"]
