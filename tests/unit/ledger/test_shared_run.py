"""Runs that several callers share."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from ledgermq.errors import Unavailable
from ledgermq_ledger.log.writing.shared_run import SharedRun


async def test_an_error_of_a_run_that_all_callers_left_is_no_bug() -> None:
    """Every caller gave up before the run did."""
    noticed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: noticed.append(what))
    begun, failing, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await failing.wait()
        over.set()
        raise Unavailable("no answer")

    shared = SharedRun(work)
    caller = asyncio.create_task(shared.run())
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    failing.set()
    await over.wait()
    await asyncio.sleep(0)
    shared._current = None
    del caller  # its traceback holds the run
    gc.collect()
    assert noticed == []
