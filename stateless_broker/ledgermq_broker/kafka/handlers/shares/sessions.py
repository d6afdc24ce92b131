"""Share sessions of one connection: which partitions a member reads, and which request comes next. Pure.

    epoch 0      begins a session; one of the same member that is there ends, and what it holds stays held
    epoch n      the n-th request after that, of ShareFetch and ShareAcknowledge together; after 2**31 - 1 comes 1
    epoch -1     ends the session

A session belongs to its connection: Kafka, too, ends it and gives its records back when the connection ends. What the
sessions of all connections hold is bounded, too, and shared by hosts (`Room`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ledgermq.runtime.ports.shares import is_above_share
from ledgermq_broker.kafka.handlers.shares.leases import Leases, Place
from ledgermq_broker.kafka.wire.errors import Code

BEGINS, ENDS = 0, -1
SESSIONS_MAX = 16
"""Of one connection: a client has one for each member, and each member has its own connections."""
PARTITIONS_MAX = 10_000
"""Of one session."""
PLACES_MAX = 200_000
"""Sessions and their partitions, of all connections of a broker; some 230 bytes each. One host may have as many of them
as are free.
"""
INT32_MAX = 2**31 - 1


class SessionRefused(Exception):
    """`code`: the client is to get it. A session that is not found, or has another epoch, is begun again by clients."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Room:
    """What the sessions of all connections of a broker take: a place for each, and one for each partition."""

    def __init__(self, places_max: int = PLACES_MAX) -> None:
        self._free = places_max
        self._taken = Counter[str]()

    def take(self, host: str, count: int) -> None:
        """Raises SessionRefused, and takes none then."""
        if is_above_share(self._taken[host], count, self._free):
            raise SessionRefused(
                Code.SHARE_SESSION_LIMIT_REACHED,
                f"share sessions of host {host.lstrip('/')} have {self._taken[host]} places at this broker, and"
                f" {self._free} are free: read fewer partitions, or with fewer members",
            )
        self._free -= count
        self._taken[host] += count

    def give(self, host: str, count: int) -> None:
        self._free += count
        self._taken[host] -= count
        assert self._taken[host] >= 0, f"{host} gives back what it has not taken"
        if not self._taken[host]:
            del self._taken[host]


@dataclass(slots=True)
class Session:
    """`host`: for which its places count. `epoch`: of the next request. `partitions`: those that are read; the first
    of them come first.
    """

    group: str
    member: str
    room: Room
    host: str
    epoch: int = 1
    partitions: OrderedDict[Place, None] = field(default_factory=OrderedDict)
    leases: Leases = field(default_factory=Leases)

    def read(self, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """Add partitions, then leave others. Raises SessionRefused, and leaves out the newest then."""
        before = len(self.partitions)
        for place in added:
            self.partitions[place] = None
        for place in forgotten:
            self.partitions.pop(place, None)
        is_too_long = len(self.partitions) > PARTITIONS_MAX
        self._keep(PARTITIONS_MAX)
        more = len(self.partitions) - before
        try:
            self.room.take(self.host, more) if more > 0 else self.room.give(self.host, -more)
        except SessionRefused:
            self._keep(before)
            raise
        if is_too_long:
            raise SessionRefused(
                Code.INVALID_REQUEST, f"a share session reads at most {PARTITIONS_MAX} partitions of a broker"
            )

    def _keep(self, most: int) -> None:
        while len(self.partitions) > most:
            self.partitions.popitem()

    def next_partitions(self, most: int) -> list[Place]:
        """Return some of the partitions; the next call returns those after them."""
        found = [place for place, _ in zip(self.partitions, range(most), strict=False)]
        if len(found) < len(self.partitions):
            for place in found:
                self.partitions.move_to_end(place)
        return found


class Sessions:
    """Of one connection. `room`: of all connections."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._open: dict[tuple[str, str], Session] = {}

    def fetching(self, group: str, member: str, epoch: int, host: str = "") -> Session:
        """Return the session of a ShareFetch, which it may begin; `host`: of the client. Raises SessionRefused."""
        if epoch != BEGINS:
            return self.next(group, member, epoch)
        before = self._open.get((group, member))
        if before is None and len(self._open) >= SESSIONS_MAX:
            raise SessionRefused(
                Code.SHARE_SESSION_LIMIT_REACHED, f"a connection has at most {SESSIONS_MAX} share sessions"
            )
        if before is None:
            self._room.take(host, 1)
        session = Session(group, member, self._room, host if before is None else before.host)
        if before is not None:  # its own place goes on
            session.leases = before.leases
            self._room.give(before.host, len(before.partitions))
        self._open[group, member] = session
        return session

    def next(self, group: str, member: str, epoch: int) -> Session:
        """Return the session of a request that comes after its first. Raises SessionRefused."""
        session = self._open.get((group, member))
        if epoch == BEGINS:
            raise SessionRefused(Code.INVALID_SHARE_SESSION_EPOCH, "a share session begins with ShareFetch")
        if session is None:
            raise SessionRefused(
                Code.SHARE_SESSION_NOT_FOUND,
                f"member {member} of group {group} has no share session on this connection",
            )
        if epoch == ENDS:
            return session
        if epoch != session.epoch:
            raise SessionRefused(
                Code.INVALID_SHARE_SESSION_EPOCH, f"the share session is at epoch {session.epoch}, not {epoch}"
            )
        session.epoch = 1 if epoch == INT32_MAX else epoch + 1
        return session

    def end(self, session: Session) -> None:
        if self._open.pop((session.group, session.member), None) is session:
            self._room.give(session.host, 1 + len(session.partitions))

    def close(self) -> None:
        for session in self.all():
            self.end(session)

    def all(self) -> list[Session]:
        return list(self._open.values())
