"""An event loop in a thread: results, errors, and an end that leaves nothing running."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator

import pytest

from ledgermq.errors import DeadlineExceeded
from ledgermq.runtime.process.loop_thread import LoopThread


def test_a_coroutine_runs_in_the_other_thread_and_its_result_or_error_comes_back() -> None:
    thread = LoopThread("test")

    async def where() -> str:
        assert thread.is_current
        return threading.current_thread().name

    async def fails() -> None:
        raise ValueError("no")

    try:
        assert thread.run(where()) == "test"
        assert not thread.is_current
        with pytest.raises(ValueError, match="no"):
            thread.run(fails())
    finally:
        thread.close()


def test_close_cancels_what_runs_and_waits_for_its_end() -> None:
    thread = LoopThread("test")
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.set()

    running = thread.start(work())
    assert begun.wait(60)
    thread.close()
    assert ended.is_set()
    assert thread.loop.is_closed()
    with pytest.raises(concurrent.futures.CancelledError):
        running.result(0)


def test_a_call_is_made_in_the_loop() -> None:
    thread = LoopThread("test")
    called: concurrent.futures.Future[tuple[int, bool]] = concurrent.futures.Future()
    try:
        thread.call(lambda value: called.set_result((value, thread.is_current)), 7)
        assert called.result(60) == (7, True)
    finally:
        thread.close()


def test_close_waits_for_worker_threads_when_asked() -> None:
    thread = LoopThread("test")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    async def in_a_worker() -> None:
        await asyncio.to_thread(work)

    thread.start(in_a_worker())
    assert begun.wait(60)
    threading.Timer(0.05, go_on.set).start()
    thread.close(waits_for_workers=True)
    assert ended.is_set()


@pytest.fixture
def bounded() -> Iterator[LoopThread]:
    thread = LoopThread("test", stalled_s_max=60)
    yield thread
    thread.close()


async def _nothing() -> str:
    return "done"


def test_a_caller_does_not_wait_for_a_thread_that_waits_for_its_lock(bounded: LoopThread) -> None:
    held = threading.Lock()
    with held:
        bounded.call(held.acquire)
        with pytest.raises(DeadlineExceeded, match="does nothing"):
            bounded.run(_nothing(), timeout_s=1)
        begun_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):  # the next one does not wait a minute
            bounded.run(_nothing())
        assert time.monotonic() - begun_s < 30
    assert bounded.run(_nothing()) == "done"


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="processor time shows it")
def test_a_caller_waits_for_a_thread_that_is_at_work(bounded: LoopThread) -> None:
    def work() -> None:
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            pass

    bounded.call(work)
    assert bounded.run(_nothing(), timeout_s=1) == "done"


def test_a_caller_waits_as_long_as_a_call_takes(bounded: LoopThread) -> None:
    async def slow() -> str:
        await asyncio.sleep(1.8)
        return "done"

    assert bounded.run(slow(), timeout_s=0.1) == "done"


def test_a_thread_that_has_ended_is_not_waited_for() -> None:
    thread = LoopThread("test")
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    with pytest.raises(concurrent.futures.CancelledError):
        thread.run(_nothing())
    thread.close()
    with pytest.raises(concurrent.futures.CancelledError):
        thread.run(_nothing())
