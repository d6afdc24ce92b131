"""Know who is connected: the callers of each connection, and which topics they write and read.

gRPC does not say when a connection ends, and clients of the Kafka protocol are listed in the same way. So a caller is
listed while it has a call under way, and for some minutes after its last one. All that callers choose themselves is
bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

CALLERS_MAX = 2_000
TOPICS_MAX = 20
"""Topics of a caller that are known by name, in each direction."""
TEXT_MAX = 249
LISTED_MS = 300_000
"""How long a caller stays in the list after its last call."""


@dataclass(slots=True)
class ConnectedCaller:
    """One caller on one connection. Times in milliseconds since the epoch. `client`: name and version of its library,
    as it says itself.
    """

    number: int
    address: str
    principal: str
    client_id: str
    client: str
    since_ms: int
    last_ms: int
    calls: int = 0
    calls_now: int = 0
    produces: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)

    def end_call(self, now_ms: int) -> None:
        self.calls_now -= 1
        self.last_ms = now_ms

    def note(self, method: str, request: Any) -> None:
        """Note which topics a request writes or reads. `method`: its attribute in `BrokerApi`."""
        if (written := _WRITTEN.get(method)) is not None:
            self.note_written(written(request))
        elif method in _READING:
            self.note_read(part.topic for part in request.partitions)

    def note_written(self, topics: Iterable[str]) -> None:
        _add(self.produces, topics)

    def note_read(self, topics: Iterable[str]) -> None:
        _add(self.reads, topics)


def _add(known: set[str], topics: Iterable[str]) -> None:
    for topic in topics:
        if topic not in known:
            if len(known) >= TOPICS_MAX:
                return
            known.add(topic[:TEXT_MAX])


def _batches(frame: Any) -> Iterable[str]:
    return (batch.topic for batch in frame.header.batches)


def _staged(frame: Any) -> Iterable[str]:
    return (each.batch.topic for each in frame.header.batches)


_WRITTEN: Mapping[str, Callable[[Any], Iterable[str]]] = {
    "produce": _batches,
    "produce_once": _batches,
    "produce_delayed": _batches,
    "produce_delayed_once": _batches,
    "stage": _staged,
    "stage_delayed": _staged,
}
_READING = frozenset({"fetch", "fetch_once", "share_fetch"})


class Connections:
    """The callers of one broker. `now_ms`: the clock."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.now_ms = now_ms
        self._numbers = count(1)
        self._callers: OrderedDict[str, OrderedDict[tuple[str, str], ConnectedCaller]] = OrderedDict()
        """By principal, then by address and client id; in both, the one whose call began last is the last one."""
        self._count = 0

    def begin_call(self, address: str, principal: str, client_id: str, client: str) -> ConnectedCaller:
        """Count a call that begins; its end is `ConnectedCaller.end_call`."""
        key, now_ms = (address, client_id), self.now_ms()
        of_principal = self._callers.setdefault(principal, OrderedDict())
        self._callers.move_to_end(principal)
        found = of_principal.get(key)
        if found is None:
            found = ConnectedCaller(
                next(self._numbers), address, principal, client_id, client[:TEXT_MAX], now_ms, now_ms
            )
            of_principal[key] = found
            self._count += 1
            if self._count > CALLERS_MAX:
                self._make_room()
        else:
            of_principal.move_to_end(key)
        found.calls += 1
        found.calls_now += 1
        found.last_ms = now_ms
        return found

    def _make_room(self) -> None:
        """Drop a caller of the principal that has most: client ids that one makes up hide no other principal. With more
        callers than are listed, nearly every call comes here.
        """
        most = max(self._callers, key=lambda principal: len(self._callers[principal]))
        self._callers[most].popitem(last=False)
        self._count -= 1
        if not self._callers[most]:
            del self._callers[most]

    def page(self, after: int, limit: int) -> tuple[Sequence[ConnectedCaller], bool]:
        """Return the callers with numbers above `after`, in their order, and whether there are more."""
        oldest_ms = self.now_ms() - LISTED_MS
        for principal, known in list(self._callers.items()):
            for key in [key for key, each in known.items() if not each.calls_now and each.last_ms < oldest_ms]:
                del known[key]
                self._count -= 1
            if not known:
                del self._callers[principal]
        callers = (each for known in self._callers.values() for each in known.values())
        behind = sorted((each for each in callers if each.number > after), key=lambda each: each.number)
        return behind[:limit], len(behind) > limit

    def __len__(self) -> int:
        return self._count
