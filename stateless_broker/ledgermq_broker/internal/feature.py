"""Declare a feature whose state is an internal topic: its topics, and what a broker and its tools do with them.

The rooms of features have one declaration each, and `ledgermq_broker.features` lists these. Brokers,
controllers, heartbeats, metrics and `ledgermq fsck` walk that list, and name no feature themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

from ledgermq.errors import LedgerMQError
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.internal.core import CoreKind, Hosted, Tabled
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.internal.topic import InternalTopic
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_broker.paths.produce_path import ProducePath
from ledgermq_broker.paths.received_batches import BatchChecks
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.fsck.check import Checked
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.root.two_clocks import TwoClocks

BUNDLES_MAX = 256
"""Bundles of one broker that have their own metrics."""

H = TypeVar("H", bound=Hosted)
S = TypeVar("S", bound="Serving[Any]")
T = TypeVar("T")


class Serving(Generic[H]):
    """A feature as one broker serves it. `topic`: its internal topic, whose partitions `terms` serves as `kind`
    says.
    """

    def __init__(self, topic: InternalTopic, terms: InternalTerms, kind: CoreKind[Any, H]) -> None:
        self._topic = topic
        self._terms = terms
        self._kind = kind

    def served(self) -> list[H]:
        """Return the partitions that this broker serves now."""
        return self._terms.ready(self._kind)

    def refused(self) -> dict[int, LedgerMQError]:
        """Return the partitions that this broker owns but cannot read, with the errors."""
        return self._terms.refused(self._kind.topic)

    def used_by(self, principal: int) -> Counter[str]:
        """Return what a principal (a hash of its name) has of the feature's tables in this broker, by their names."""
        found: Counter[str] = Counter()
        partitions: Sequence[object] = self.served()
        for partition in partitions:
            if isinstance(partition, Tabled):
                found.update(partition.used_by(principal))
        return found

    def alarms(self) -> list[str]:
        """Return what an operator has to know."""
        return []

    async def close(self) -> None:
        """Leave no task behind."""
        await self._topic.close()


def one_of(values: Iterable[object], kind: type[T]) -> T:
    """Return the first value of this type; if there is none, make one without arguments."""
    found = next((each for each in values if isinstance(each, kind)), None)
    return kind() if found is None else found


@dataclass(frozen=True, slots=True)
class Gauge:
    """Values for a metric, read now: with one sample for each tuple of values of its `labels`."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]


def refused(name: str, text: str, serving: Serving[Any] | None) -> Gauge:
    """Return how many partitions are refused, by the codes of their errors."""
    errors = serving.refused().values() if serving else ()
    counted = Counter(error.code for error in errors)
    return Gauge(name, text, ("code",), [((code,), count) for code, count in counted.items()])


def by_bundle(prefix: str, texts: Mapping[str, tuple[str, str]], serving: Serving[Any] | None) -> Iterator[Gauge]:
    """Yield a gauge for each field of the sizes of bundles: `texts` has (the end of its name, its text) by the field.
    Each partition served has `bundle` and `sizes()`.
    """
    partitions = sorted(serving.served() if serving else (), key=lambda one: one.bundle)[:BUNDLES_MAX]
    sizes = [(str(partition.bundle), partition.sizes()) for partition in partitions]
    for of, (name, text) in texts.items():
        yield Gauge(prefix + name, text, ("bundle",), [((bundle,), getattr(size, of)) for bundle, size in sizes])


@dataclass(frozen=True, slots=True)
class StoredRoot:
    """A root to be checked without a broker. `quick`: indexes and records of states only."""

    store: ObjectStore
    cluster: ClusterSettings
    sources: Sources
    quick: bool = False


@dataclass(frozen=True, eq=False)
class Feature(Generic[S]):
    """A feature of brokers with internal topics.

    `what`: the word for it in texts, a plural; no two features have the same. `topics`, `announced`: see
    `ledgermq_broker.metadata.controller.InternalTopics`; the records are in the last topic. `open(parts)` builds the
    feature, and adds its kind to `parts.terms`. `if_refused`: what the loss of one of its partitions means. `gauges`:
    values for metrics; of no broker (None): the same metrics without samples. `check`: adds what is wrong with the
    feature's part of a root to a check of the whole.
    """

    what: str
    topics: tuple[TopicSpec, ...]
    open: Callable[[BrokerParts], S]
    announced: str = ""
    if_refused: str = ""
    gauges: Callable[[S | None], Iterable[Gauge]] = lambda serving: ()
    check: Callable[[StoredRoot, Checked], Awaitable[None]] | None = None

    def refusals(self, serving: S) -> list[str]:
        """Return a text for each partition that this broker cannot serve."""
        return [
            f"{self.what} of partition {partition} of {self.topics[-1].name}{self.if_refused}: {error.message}"
            for partition, error in sorted(serving.refused().items())
        ]


class Opened:
    """The features of one broker, in the order in which they were opened. One may use those before it."""

    def __init__(self) -> None:
        self._serving: dict[str, tuple[Feature[Any], Serving[Any]]] = {}

    def __iter__(self) -> Iterator[Serving[Any]]:
        return iter([serving for _, serving in self._serving.values()])

    def of(self, feature: Feature[S]) -> S:
        """Return a feature that is open."""
        if feature.what not in self._serving:
            raise AssertionError(f"{feature.what} are not open yet: in FEATURES they come before what uses them")
        return cast(S, self._serving[feature.what][1])

    def open_all(self, features: Sequence[Feature[Any]], parts: BrokerParts) -> None:
        """Open features in this order, which is also the order in which partitions of a bundle are loaded."""
        for feature in features:
            self._serving[feature.what] = feature, feature.open(parts)

    def refusals(self) -> list[str]:
        """Return a text for each partition of internal topics that this broker cannot serve."""
        return [text for feature, serving in self._serving.values() for text in feature.refusals(serving)]

    async def close(self) -> None:
        for serving in self:
            await serving.close()


@dataclass(frozen=True)
class BrokerParts:
    """The parts of a broker that features are built from.

    `settings()`: those in force. `counts`: what is not the default of its type, see `counts_of`. `asked(bundle,
    address)`: as in `BundleCalls`. `rack_of(bundle)`: the rack of its owner, "" if it has none.
    """

    address: str
    settings: Callable[[], BrokerSettings]
    constants: BrokerConstants
    counts: Sequence[object]
    context: BundleContext
    ownership: Ownership
    metadata: Metadata
    controller: Controller
    at_controller: AtController
    terms: InternalTerms
    clocks: TwoClocks
    store_clock: StoreClock
    calls: BundleCalls
    asked: Callable[[int, str], tuple[str, BrokerApi]]
    rack_of: Callable[[int], str]
    checks: BatchChecks
    produce_path: ProducePath
    opened: Opened = field(default_factory=Opened)

    def topic(self, name: str) -> InternalTopic:
        """Return an internal topic, which is created with those of its feature."""
        create = partial(self.controller.create_internal_topic, name)
        return InternalTopic(name, self.metadata, self.at_controller, create)

    def limits_of(self, kind: type[T]) -> T:
        """Return the limits of this type; its defaults, if the broker was given no others."""
        return one_of(self.constants.limits, kind)

    def counts_of(self, kind: type[T]) -> T:
        """Return the observer of this type; its methods do nothing if this broker was given none."""
        return one_of(self.counts, kind)
