"""The brokers' time, as one client knows it: delays are added to it, so that a wrong clock of this
machine does not shift them.

A broker reports its time when a producer opens a session, and when a transactional id is initialized.
From then on the loop's clock carries this time, because it never jumps. It drifts; so the time is asked
for again once it is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources

OLD_S = 3600.0
"""The loop's clock drifts by at most 500 ppm: 1.8 s in this time."""

_SECOND_US = 1_000_000


class BrokerClock:
    """Until a broker has reported its time, it is that of this machine's clock, as it was when this object
    was made, carried by the loop's clock.
    """

    def __init__(self, sources: Sources) -> None:
        """Call it on the client's event loop; elsewhere this machine's clock is not carried by the loop's."""
        self._sources = sources
        self._begun_us = sources.now_us()
        self._begun_loop_s: Callable[[], float] | None = None
        with suppress(RuntimeError):  # there is no running loop
            self._begun_loop_s = asyncio.get_running_loop().time
        self._begun_s = self._begun_loop_s() if self._begun_loop_s is not None else 0.0
        self._loop_s: Callable[[], float] | None = None
        """Time of the loop's clock; any thread may call it. None: no broker was asked yet."""
        self._asked_s = 0.0
        self._known: tuple[int, float] | None = None
        """The brokers' time, and the loop's time at which it was so."""

    def learn(self, reported_us: int, asked_s: float) -> None:
        """Take the time that a broker has just reported; 0: it does not know the time.

        `asked_s`: loop time of the request. The broker read its clock after it: on average, half of the
        way ago.
        """
        loop_s = asyncio.get_running_loop().time
        now_s = loop_s()
        if reported_us > 0:
            self._known = reported_us + round((now_s - asked_s) / 2 * _SECOND_US), now_s
        self._loop_s, self._asked_s = loop_s, now_s

    def note_asked(self) -> None:
        """Note that brokers are asked again: the time is not old for a while, even if none answers."""
        if self._loop_s is not None:
            self._asked_s = self._loop_s()

    @property
    def is_known(self) -> bool:
        """Return whether a broker has reported its time."""
        return self._known is not None

    def is_old(self) -> bool:
        """Return whether to ask for the time again."""
        return self._loop_s is not None and self._loop_s() - self._asked_s > OLD_S

    def local_us(self) -> int:
        """Return the time by this machine's clock, which does not jump when that clock is set. Any thread
        may call it.
        """
        if self._begun_loop_s is None:
            return self._sources.now_us()
        return self._begun_us + round((self._begun_loop_s() - self._begun_s) * _SECOND_US)

    def correction_us(self) -> int:
        """Return what to add to a time of `local_us`."""
        return self.now_us() - self.local_us()

    def is_ahead(self, time_us: int, by_us: int) -> bool:
        """Return whether a time lies more than `by_us` after the brokers' time, as far as it is known."""
        if self._known is not None and time_us - by_us <= self._known[0]:
            return False  # brokers have reported a later time, so the clock need not be read
        return time_us - by_us > self.now_us()

    def now_us(self) -> int:
        """Return the brokers' time, as far as it is known."""
        if self._known is None or self._loop_s is None:
            return self.local_us()
        reported_us, at_s = self._known
        return reported_us + round((self._loop_s() - at_s) * _SECOND_US)


async def reported_us(at: BrokerApi) -> int:
    """Return the time that a broker reports, in microseconds since the epoch; 0: it has none."""
    return (await at.open_producer(pb.OpenProducerRequest())).now_us
