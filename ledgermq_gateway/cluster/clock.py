"""The cluster's time, as one gateway knows it. Ages, delays, times to live and times of records count by it, so that a
wrong clock of the gateway's machine moves none of them.

    machine's clock   until a broker has reported its time. A caller's first call asks for it before it does anything
    brokers' time     from then on, carried by the loop's clock, which never jumps; asked for again once it is old

The gateway and its clients take the time of day from `ClusterClock.sources`.
"""

from __future__ import annotations

import asyncio

import ledgermq
from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.record import microseconds_of
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources

OLD_S = 600.0
"""The loop's clock drifts by at most 0.3 s in this time."""
AGAIN_S = 5.0
"""When to ask again after an answer that said nothing new."""
ASK_S_MAX = 5.0
DRIFT = 500e-6
NOTED_S = 1.0
"""A clock of this machine that differs by more is a problem to note."""


class ClusterClock:
    """`machine`: clock and randomness of this machine. `sources`: the same randomness, and the cluster's time."""

    def __init__(self, machine: Sources | None = None) -> None:
        """Call it on the event loop of the gateway."""
        self._machine = machine or Sources()
        self._clock = BrokerClock(self._machine)
        self.sources = Sources(self._clock.now_us, self._machine.random)
        self._next_s = float("-inf")
        """When to ask again, by the loop's clock."""
        self._error_s, self._since_s = float("inf"), 0.0
        """How far the time may have been wrong when it was learned, and when that was, by the loop's clock."""

    async def refresh(self, client: ledgermq.Client) -> None:
        """Ask a broker for the time, in the name of this client, if it is not known or old. If none answers, what is
        known stays.
        """
        loop_s = asyncio.get_running_loop().time
        asked_s = loop_s()
        if asked_s < self._next_s:
            return
        if self._clock.is_known:
            self._next_s = asked_s + AGAIN_S  # one call asks, the others go on
        try:
            async with asyncio.timeout(ASK_S_MAX):
                reported = await client.cluster_time()
        except (LedgerMQError, TimeoutError):
            return
        now_s = loop_s()
        error_s = (now_s - asked_s) / 2
        is_better = error_s <= self._error_s + (now_s - self._since_s) * DRIFT
        self._next_s = now_s + (AGAIN_S if reported is None or not is_better else OLD_S)
        if reported is not None and is_better:
            self._clock.learn(microseconds_of(reported), asked_s)
            self._error_s, self._since_s = error_s, now_s

    @property
    def ahead_s(self) -> float:
        """Return by how many seconds this machine's clock is ahead of the brokers' time; 0 until that is known."""
        return (self._machine.now_us() - self._clock.now_us()) / 1e6 if self._clock.is_known else 0.0

    def notes(self) -> list[str]:
        """Return what an operator should know."""
        ahead_s = self.ahead_s
        if abs(ahead_s) <= NOTED_S:
            return []
        where = "ahead of" if ahead_s > 0 else "behind"
        note = (
            f"the clock of this machine is {abs(ahead_s):.1f} s {where} the brokers' time: records and delays go by"
            " that time, but certificates and logs do not: let this machine follow a time server"
        )
        return [note]
