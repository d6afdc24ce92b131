"""Values that the serving of queue groups passes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.queues.counts import ShareCounts
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic


@dataclass(frozen=True)
class ShareParts:
    """What all terms of a broker share. `lives`: how often the state was loaded, by term of a bundle."""

    limits: ShareLimits
    catalog: Callable[[], Catalog]
    counts: ShareCounts
    new_id: Callable[[], bytes]
    lives: WeakKeyDictionary[BundleOwner, int] = field(default_factory=WeakKeyDictionary)


class Unfinished(NamedTuple):
    """A partition of a queue group with a message at `start`, the first that is not finished."""

    key: ShareKey
    topic: Topic
    start: int
