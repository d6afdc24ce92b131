"""Where a client lives: one process and one event loop. Elsewhere its calls would wait forever, so
they check this first.

A fork copies a client without its threads and connections. Another event loop never receives what
this one has received.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import types
import weakref

from ledgermq.errors import UsedElsewhere

_homes: weakref.WeakSet[Home] = weakref.WeakSet()


class Home:
    """`left`: this is a forked process, and the client belongs to its parent.

    `thread`: the event loop's, 0 before the first check.
    """

    __slots__ = ("__weakref__", "_loop", "left", "thread")

    def __init__(self) -> None:
        self.left = False
        self.thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        _homes.add(self)

    @property
    def runs(self) -> bool:
        """Whether the event loop still runs, in this process."""
        return not self.left and self._loop is not None and self._loop.is_running()

    def check_process(self) -> None:
        """Raise UsedElsewhere in a process that was forked from the client's."""
        if self.left:
            raise UsedElsewhere(
                "this client was made before os.fork(), and works only in the parent process; make a client in each"
                " process"
            )

    def check(self) -> None:
        """Raise UsedElsewhere in a forked process, and outside of the event loop of the first
        check.
        """
        self.check_process()
        running = asyncio._get_running_loop()
        if self._loop is None:
            self._loop, self.thread = running, threading.get_ident()
        elif running is not self._loop:
            raise UsedElsewhere(
                "this client belongs to another event loop; make a client in each event loop, or use ledgermq.sync"
            )


def refuse_green_threads(*, in_thread: bool = False) -> None:
    """Raise UsedElsewhere where a library (gevent, eventlet) has replaced threads by its own: gRPC's threads would
    never run. `in_thread`: the event loop runs in another thread, and needs the system's selectors, too.
    """
    replaced = ""
    if not isinstance(threading.get_ident, types.BuiltinFunctionType):
        replaced = threading.get_ident.__module__
    elif in_thread and selectors.DefaultSelector.__module__ != selectors.__name__:
        replaced = selectors.DefaultSelector.__module__
    if replaced:
        raise UsedElsewhere(
            f"{replaced.partition('.')[0]} has replaced threads or selectors of this process by its own (monkey"
            " patching), and the client needs real ones: use it in a process that is not patched"
        )


def _leave_all() -> None:
    for home in _homes:
        home.left = True


os.register_at_fork(after_in_child=_leave_all)
