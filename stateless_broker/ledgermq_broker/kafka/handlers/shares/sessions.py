"""Share sessions of one connection: which partitions a member reads, and which request comes next. Pure.

    epoch 0      begins a session; one of the same member that is there ends, and what it holds stays held
    epoch n      the n-th request after that, of ShareFetch and ShareAcknowledge together; after 2**31 - 1 comes 1
    epoch -1     ends the session

A session belongs to its connection: Kafka, too, ends it and gives its records back when the connection ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ledgermq_broker.kafka.handlers.shares.leases import Leases, Place
from ledgermq_broker.kafka.wire.errors import Code

BEGINS, ENDS = 0, -1
SESSIONS_MAX = 16
"""Of one connection: a client has one for each member, and each member has its own connections."""
PARTITIONS_MAX = 10_000
"""Of one session."""
INT32_MAX = 2**31 - 1


class SessionRefused(Exception):
    """`code`: the client is to get it. A session that is not found, or has another epoch, is begun again by clients."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass(slots=True)
class Session:
    """`epoch`: of the next request. `partitions`: those that are read; the first of them come first."""

    group: str
    member: str
    epoch: int = 1
    partitions: OrderedDict[Place, None] = field(default_factory=OrderedDict)
    leases: Leases = field(default_factory=Leases)

    def read(self, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """Add partitions, then leave others. Raises SessionRefused."""
        for place in added:
            self.partitions[place] = None
        for place in forgotten:
            self.partitions.pop(place, None)
        if len(self.partitions) > PARTITIONS_MAX:
            while len(self.partitions) > PARTITIONS_MAX:
                self.partitions.popitem()
            raise SessionRefused(
                Code.INVALID_REQUEST, f"a share session reads at most {PARTITIONS_MAX} partitions of a broker"
            )

    def next_partitions(self, most: int) -> list[Place]:
        """Return some of the partitions; the next call returns those after them."""
        found = [place for place, _ in zip(self.partitions, range(most), strict=False)]
        if len(found) < len(self.partitions):
            for place in found:
                self.partitions.move_to_end(place)
        return found


class Sessions:
    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Session] = {}

    def fetching(self, group: str, member: str, epoch: int) -> Session:
        """Return the session of a ShareFetch, which it may begin. Raises SessionRefused."""
        if epoch != BEGINS:
            return self.next(group, member, epoch)
        before = self._open.get((group, member))
        if before is None and len(self._open) >= SESSIONS_MAX:
            raise SessionRefused(
                Code.SHARE_SESSION_LIMIT_REACHED, f"a connection has at most {SESSIONS_MAX} share sessions"
            )
        session = self._open[group, member] = Session(group, member)
        if before is not None:
            session.leases = before.leases
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
        self._open.pop((session.group, session.member), None)

    def all(self) -> list[Session]:
        return list(self._open.values())
