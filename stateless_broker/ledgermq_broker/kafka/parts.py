"""What all connections of Kafka clients share.

turns       requests begin in turns of principals, or of hosts while the principal is not known or rules do not
            count; what a decoded request holds in memory is counted by its elements of arrays (`Turns.places`)
members     of share groups that this broker coordinates
share_room  for the share sessions of all connections
endings     why connections end: a bounded number of lines a second in the log, for strangers make them end
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledgermq.runtime.ports.turns import Turns
from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq.sources import Sources
from ledgermq_broker.access.door import Door
from ledgermq_broker.admission.connections import Connections
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.groups.share_members import ShareMembers
from ledgermq_broker.kafka.handlers.produce import RunBlocking
from ledgermq_broker.kafka.handlers.shares.sessions import Room
from ledgermq_broker.logs import get_logger
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.settings.brokers import BrokerSettings

ALL_ELEMENTS_MAX = 1_000_000
"""Elements of arrays in the requests of all connections that are in service. One principal alone may have half."""
AT_ONCE_MAX = 4
FREE_PER_S = 50
LINES_AT_ONCE, LINES_PER_S = 20, 1.0

log = get_logger(__name__)


class Endings:
    """`ended`: connections so far, `lines`: those written. The next line says how many were left out before it."""

    def __init__(self) -> None:
        self.ended = self.lines = 0
        self._left_out = 0
        self._bucket: TokenBucket | None = None

    def note(self, what: str, *, peer: str, why: str, is_warning: bool = False) -> None:
        self.ended += 1
        now_s = asyncio.get_running_loop().time()
        if self._bucket is None:
            self._bucket = TokenBucket(LINES_PER_S, now_s, LINES_AT_ONCE)
        if self._bucket.level(now_s) < 1:
            self._left_out += 1
            return
        self._bucket.take(1, now_s)
        self.lines += 1
        more: dict[str, Any] = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        (log.warning if is_warning else log.info)(what, peer=peer, why=why, **more)


@dataclass(frozen=True, slots=True)
class Parts:
    """`batch_memory_max()`: what converting one batch may take. `settings()`: of the broker, as they are now.
    `turns`: their places are elements. `connections`: the list of who is connected.
    """

    door: Door
    brokers: Brokers
    sources: Sources
    run_blocking: RunBlocking
    batch_memory_max: Callable[[], int]
    settings: Callable[[], BrokerSettings]
    meter: CallMeter = field(default_factory=CallMeter)
    connections: Connections = field(default_factory=Connections)
    endings: Endings = field(default_factory=Endings)
    members: ShareMembers = field(default_factory=ShareMembers)
    share_room: Room = field(default_factory=Room)
    turns: Turns = field(default_factory=lambda: Turns(ALL_ELEMENTS_MAX, AT_ONCE_MAX, free_per_s=FREE_PER_S))
