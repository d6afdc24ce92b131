"""Define what a partition of an internal topic consists of: a pure state, and the object that serves
it for one term of its bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from ledgermq.errors import LedgerMQError
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.snapshot import InternalRecord
from ledgermq_ledger.topics.topic import Topic


class Core(Protocol):
    """The pure state of one partition, made from the latest record of each key."""

    def apply(self, key: bytes, value: bytes | None, /) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""


class Hosted(Protocol):
    """A loaded partition, which decides and answers calls until it is closed."""

    @property
    def lost(self) -> LedgerMQError | None:
        """Return why this object no longer serves the partition; None while it does."""

    def tick(self) -> None:
        """Apply a change of the catalog."""

    def keeps(self, place: PartitionId) -> str:
        """Return what this bundle still has to do with a partition of users, so that it may not move to another
        one: words for an operator; empty: nothing. Raises Unavailable while that is not known.
        """

    def close(self, error: LedgerMQError) -> None:
        """Stop serving: later calls are refused, and `lost` is the first `error`. Idempotent."""


@runtime_checkable
class Tabled(Protocol):
    """A loaded partition with tables of which each principal has a share."""

    def used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has of the tables, by their names."""


class Follower(Hosted, Protocol):
    """A loaded partition that knows things of partitions of users, which go along when these move (design Y15)."""

    async def bring(self, places: Collection[PartitionId], records: Iterable[InternalRecord]) -> None:
        """Replace what is known of these partitions, durably. `records`: all of this topic's partition in the bundle
        that they come from, in order; those of other partitions are left out. They are not here yet, so until they
        are, no call changes what it writes. May be repeated.

        Raises NotOwner, Unavailable, ResourceExhausted; DataDamaged, FormatNotSupported.
        """


@dataclass(frozen=True)
class Opening:
    """What an object needs to serve a partition.

    `log` is shared by all partitions of the bundle, so one decision may write to several of them.
    `hosted(topic name, partition)` returns another loaded partition of the same bundle
    (`InternalTerm.hosted`). Call `on_failed` after a partition has closed itself because of a bug;
    the partition is then loaded again. If the log fails, all partitions of the bundle are closed.
    """

    owner: BundleOwner
    topic: Topic
    partition: int
    log: BundleLog
    hosted: Callable[[str, int], Hosted]
    on_failed: Callable[[], None]

    @property
    def place(self) -> PartitionId:
        return PartitionId(self.topic.id, self.partition)


C = TypeVar("C", bound=Core)
H = TypeVar("H", bound=Hosted)


@dataclass(frozen=True)
class CoreKind(Generic[C, H]):
    """How to serve the partitions of the internal topic `topic`.

    `core(partition)` returns a state without records. `host(core, opening)` is called when all records
    are applied: it returns the object that serves the state, and starts its clocks. `follows`: that
    object is a `Follower`.
    """

    topic: str
    core: Callable[[int], C]
    host: Callable[[C, Opening], H]
    follows: bool = False
