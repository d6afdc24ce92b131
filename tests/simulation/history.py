"""Record the requests of clients and their answers, as values, in the order in which they
happened.

An operation is an invocation and, perhaps, a response; the place in the history is its time (one
event loop: a total order). A response is OK (it happened), FAIL (it did not and never will) or INFO
(unknown: time-outs, lost terms, crashes), as in Jepsen. Values are strings that no two sends share,
so each record identifies its send. Independent of the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

Partition = tuple[str, int]
"""(topic, partition); a topic that was deleted and created again is another topic: the name carries
its creation.
"""


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Produce:
    """`once`: the client may repeat it, and yet it must not be stored twice.

    `ordered`: stored in the order of the client's sends.
    """

    op: int
    client: str
    partition: Partition
    values: tuple[str, ...]
    once: bool = True
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Produced:
    op: int
    outcome: Outcome
    base_offset: int = -1
    why: str = ""


@dataclass(frozen=True, slots=True)
class Assign:
    """A reader begins, or seeks, at `offset`."""

    reader: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class Poll:
    """What a reader got: (offset, value), never empty."""

    reader: str
    partition: Partition
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class AskEnd:
    op: int
    client: str
    partition: Partition


@dataclass(frozen=True, slots=True)
class ToldEnd:
    op: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogStart:
    """Retention was seen to allow the removal of what is below `offset`."""

    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class PlainRead:
    """Parquet files that a plain reader found, as (first, last) offsets, sorted; `live`: those that
    it must have found.
    """

    partition: Partition
    files: tuple[tuple[int, int], ...]
    live: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """The deletion of a topic was confirmed: nothing of it is readable from now on."""

    topic: str


Event = Produce | Produced | Assign | Poll | AskEnd | ToldEnd | LogStart | PlainRead | Gone


@dataclass(frozen=True, slots=True)
class FinalLog:
    """The one truth at the end: every record that was ever durable (`records`), and from where on
    they must still be readable.

    `judged_from`: below it retention took records; of these, `records` holds only those that
    readers saw.
    """

    records: dict[int, str]
    log_start: int = 0
    judged_from: int = 0

    @property
    def end(self) -> int:
        return max(max(self.records, default=-1) + 1, self.judged_from)


@dataclass(slots=True)
class History:
    events: list[Event] = field(default_factory=list)
    _ops: int = 0

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def begin_produce(
        self, client: str, partition: Partition, values: tuple[str, ...], *, once: bool = True, ordered: bool = True
    ) -> int:
        self._ops += 1
        self.add(Produce(self._ops, client, partition, values, once, ordered))
        return self._ops

    def end_produce(self, op: int, outcome: Outcome, base_offset: int = -1, why: str = "") -> None:
        self.add(Produced(op, outcome, base_offset, why))

    def ask_end(self, client: str, partition: Partition) -> int:
        self._ops += 1
        self.add(AskEnd(self._ops, client, partition))
        return self._ops

    def tell_end(self, op: int, offset: int) -> None:
        self.add(ToldEnd(op, offset))
