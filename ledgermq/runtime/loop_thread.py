"""An event loop in a thread of its own, for callers without asyncio: Spark's driver, and programs
that use `ledgermq.sync`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from ledgermq.runtime.tasks import end

T = TypeVar("T")
P = ParamSpec("P")


class LoopThread:
    """A daemon thread that runs one event loop until `close`.

    `loop`: for what has to be scheduled there. `ident`: the thread's, as `threading.get_ident`.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, where `run` would wait for itself."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result, or raise what it raises.

        A caller that is interrupted (Ctrl-C) cancels it. Raises concurrent.futures.CancelledError
        when `close` has ended it.
        """
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function in the loop soon, without waiting for it."""
        self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def close(self, *, waits_for_workers: bool = False) -> None:
        """Cancel what still runs, wait until it has ended, and stop the thread.

        `waits_for_workers`: also wait until the loop's worker threads have finished their calls.
        """
        self.run(_end_all())
        if waits_for_workers:
            self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _end_all() -> None:
    await end(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    await asyncio.get_running_loop().shutdown_asyncgens()
