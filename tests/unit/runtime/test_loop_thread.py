"""An event loop in a thread: results, errors, and an end that leaves nothing running."""

import asyncio
import concurrent.futures
import threading

import pytest

from ledgermq.runtime.loop_thread import LoopThread


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
