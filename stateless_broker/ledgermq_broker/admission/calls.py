"""Admit calls at their headers, before anything of a request is received.

    whose calls                        may be in service at once
    of one principal                   as many as are free: `calls_max` less the calls of all. So one alone
                                       gets half, two get a third each, and there always is room for others
    of one connection without rules    the same
    of brokers                         all of these, and `BROKER_CALLS` more

A connection floods if many of its calls are refused at the door, or reset before they are answered; it is
broken then (`Floods`). What one source spends so is counted beyond its connections.
"""

from __future__ import annotations

from collections import OrderedDict

from ledgermq.errors import QuotaExceeded
from ledgermq.runtime.ports.bounded_connections import host_of as host_of_address
from ledgermq.runtime.ports.shares import is_above_share
from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq_broker.admission.connection_cut import address_of

BROKER_CALLS = 500
FULL_RETRY_MS = 500

CONNECTION_BURST = 200
CONNECTION_PER_S = 20.0
"""Calls of a connection that may end in vain at once, and a second."""
SOURCE_BURST = 1000
SOURCE_PER_S = 50.0
"""The same for all connections of a source: a principal, or the host of callers that are not admitted."""
POOR_CONNECTION_MAX = 20
"""Calls in vain of a connection whose source has spent all."""
KEPT_MAX = 10_000


class CallShares:
    """Calls in service, all together and by sharer: a principal, or a connection."""

    def __init__(self, calls_max: int) -> None:
        self.calls_max = calls_max
        self.total = 0
        self._own: dict[str, int] = {}

    def begin(self, sharer: str, *, is_broker: bool = False) -> None:
        """Count a call that begins. Raises QuotaExceeded if the sharer has as many as are free."""
        own = self._own.get(sharer, 0)
        free = self.calls_max - self.total
        if self.total >= self.calls_max + BROKER_CALLS if is_broker else is_above_share(own, 1, free):
            raise QuotaExceeded(
                f"{sharer} has {own} calls and streams under way at this broker, which can serve {max(0, free)} more of"
                " all callers together: end some, or retry later",
                limit="calls",
                retry_after_ms=FULL_RETRY_MS,
            )
        self._own[sharer] = own + 1
        self.total += 1

    def end(self, sharer: str) -> None:
        left = self._own[sharer] - 1
        if left:
            self._own[sharer] = left
        else:
            del self._own[sharer]
        self.total -= 1


class _InVain:
    """What a connection or a source may spend. `spent`: since it had all of it last. It owes a burst at most."""

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._bucket = TokenBucket(per_s, now_s, burst)
        self.spent = 0

    def take(self, now_s: float) -> float:
        """Count a call; return what is left."""
        bucket = self._bucket
        before = bucket.level(now_s)
        if before >= bucket.burst:
            self.spent = 0
        bucket.take(min(1.0, before + bucket.burst), now_s)
        self.spent += 1
        return bucket.level(now_s)


class Floods:
    """Calls in vain, by connection and by source. Those that were not seen for longest are forgotten first."""

    def __init__(self) -> None:
        self._connections: OrderedDict[str, _InVain] = OrderedDict()
        self._sources: OrderedDict[str, _InVain] = OrderedDict()

    def note(self, connection: str, source: str, now_s: float) -> bool:
        """Count a call in vain; return whether to break its connection."""
        own = _kept(self._connections, connection, CONNECTION_BURST, CONNECTION_PER_S, now_s)
        shared = _kept(self._sources, source, SOURCE_BURST, SOURCE_PER_S, now_s)
        left, left_of_source = own.take(now_s), shared.take(now_s)
        return left < 0 or (left_of_source < 0 and own.spent > POOR_CONNECTION_MAX)


def _kept(kept: OrderedDict[str, _InVain], name: str, burst: int, per_s: float, now_s: float) -> _InVain:
    found = kept.get(name)
    if found is None:
        found = kept[name] = _InVain(burst, per_s, now_s)
        if len(kept) > KEPT_MAX:
            kept.popitem(last=False)
    else:
        kept.move_to_end(name)
    return found


def host_of(peer: str) -> str:
    """Return the host of a peer as gRPC names it: 10.0.0.7 of ipv4:10.0.0.7:51000; of IPv6 the network (/64)."""
    address = address_of(peer)
    return peer.rpartition(":")[0] or peer if address is None else host_of_address(address)
