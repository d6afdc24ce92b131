"""Describe what runs in the partitions of an internal topic: a pure core, and the object that serves
it for one term of its bundle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ledger.keys import PartitionId
from ledger.topics.catalog import Topic
from ledgermq.errors import LedgerMQError
from stateless_broker.bundle.owner import BundleOwner
from stateless_broker.internal.bundle_log import BundleLog


class Core(Protocol):
    """The state of one partition: pure, and made from the latest record of each key."""

    def apply(self, key: bytes, value: bytes | None, /) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""


class Hosted(Protocol):
    """A loaded partition, which decides and answers until it is closed."""

    @property
    def lost(self) -> LedgerMQError | None:
        """Return why this object serves no longer, None while it does."""

    def tick(self) -> None:
        """Apply a change of the catalog."""

    def close(self, error: LedgerMQError) -> None:
        """Answer nothing from this state any longer; `lost` is then the first `error`. Idempotent."""


@dataclass(frozen=True)
class Opening:
    """What a partition is served with.

    `log` is shared by all partitions of the bundle, so one decision may write to several of them.
    `hosted(topic name, partition)` returns another loaded partition of the same bundle
    (`InternalTerm.hosted`). Call `on_failed` after a partition has closed itself because of a bug:
    it is then loaded again. A log that fails closes all partitions of its bundle.
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
    """What runs in the partitions of the internal topic with the name `topic`.

    `core(partition)` returns a state without any record. `host(core, opening)` serves it once all
    records are applied, and starts its clocks.
    """

    topic: str
    core: Callable[[int], C]
    host: Callable[[C, Opening], H]
