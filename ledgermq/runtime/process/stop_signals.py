"""Stop programs cleanly at SIGTERM, which container runtimes and service managers send.

Python turns SIGINT into KeyboardInterrupt, but lets SIGTERM end the process in the middle of its work.
Blocks under `stop_signals.stopping` are called at the first SIGTERM, so that they can finish.

Rules. A handler that the program has installed stays: only the default action is replaced. Only the
main thread can take a signal. The second SIGTERM ends the process at once, by the default action,
even if the program has begun another block in the meantime. After the last block the default
action is back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

OnStop = Callable[[], object]


class StopSignals:
    """The blocks of one process that SIGTERM stops. Several may run at a time."""

    def __init__(self) -> None:
        self._blocks: list[OnStop] = []
        self._is_received = False

    @contextmanager
    def stopping(self, on_stop: OnStop) -> Iterator[None]:
        """Call `on_stop` in the main thread if SIGTERM arrives during the block.

        It runs between two instructions of the main thread: it may only do what is safe there, such
        as `loop.call_soon_threadsafe`. In other threads, and where SIGTERM has a handler, nothing is done.
        """
        if threading.current_thread() is not threading.main_thread() or not self._take():
            yield
            return
        self._blocks.append(on_stop)
        try:
            yield
        finally:
            self._blocks.remove(on_stop)
            if not self._blocks:
                self._give_back()

    def _take(self) -> bool:
        """Return whether SIGTERM comes to this object."""
        present = signal.getsignal(signal.SIGTERM)
        if present == self._receive:
            return True
        if present is not signal.SIG_DFL or self._is_received:
            return False
        signal.signal(signal.SIGTERM, self._receive)
        return True

    def _give_back(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._receive:  # the program may have installed its own meanwhile
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._is_received = True
        self._give_back()
        for on_stop in list(self._blocks):
            on_stop()


stop_signals = StopSignals()
"""Those of this process."""
