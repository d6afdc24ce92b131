"""A feature with an internal topic that this file alone declares: brokers, the controller, heartbeats, metrics and fsck
take it from the list of features, so a new internal topic is its room and one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ledgermq.errors import LedgerMQError, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker import composition, features
from ledgermq_broker.broker import Broker
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.internal.core import CoreKind, Opening
from ledgermq_broker.internal.feature import BrokerParts, Feature, Gauge, Serving, StoredRoot, refused
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.metadata.topic_changes import TopicSpec
from ledgermq_broker.metrics import scrape
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_broker.metrics.topic_totals import TopicTotals
from ledgermq_ledger import keys
from ledgermq_ledger.fsck.check import Checked
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from tests.broker.cluster import Cluster, in_cluster
from tests.waiting import until

TOPIC = "__sums"
BUNDLE = 2


class Sum:
    """The pure state: one number."""

    def __init__(self) -> None:
        self.total = 0

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.total = int(value or b"0")

    def add(self, number: int) -> Decision[int]:
        self.total += number
        return Decision([LogRecord(b"total", b"%d" % self.total)], self.total)


class HostedSum:
    def __init__(self, core: Sum, opening: Opening) -> None:
        self.core = core
        self._state = IssuedState("sums", opening.owner, opening.log, opening.place, self.close)

    @property
    def lost(self) -> LedgerMQError | None:
        return self._state.lost

    async def add(self, number: int) -> int:
        return await self._state.decided(lambda: self.core.add(number))

    def used_by(self, principal: int) -> dict[str, int]:
        return {"sums": self.core.total}

    def keeps(self, place: PartitionId) -> str:
        return ""

    def tick(self) -> None:
        """Nothing depends on the catalog."""

    def close(self, error: LedgerMQError) -> None:
        self._state.close(error)


class Sums(Serving[HostedSum]):
    async def add(self, number: int) -> int:
        topic = await self._topic.find_or_create()
        return await self._terms.call(self._kind, topic, keys.bundle_partition(BUNDLE), lambda found: found.add(number))


def open_sums(parts: BrokerParts) -> Sums:
    kind: CoreKind[Sum, HostedSum] = CoreKind(TOPIC, lambda partition: Sum(), HostedSum)
    parts.terms.add(kind)
    return Sums(parts.topic(TOPIC), parts.terms, kind)


def gauges(sums: Sums | None) -> Iterator[Gauge]:
    totals = [float(found.core.total) for found in sums.served()] if sums else []
    yield Gauge("ledgermq_sums", "Sums of the bundles served here", (), [((), sum(totals))] if sums else [])
    yield refused("ledgermq_refused_sums", "Sums that cannot be read", sums)


async def check(root: StoredRoot, checked: Checked) -> None:
    problems = Problems()
    problems.untidy(keys.ledger(BUNDLE), "SUM_LOOKED_AT", "seen")
    checked.add(problems, Problems())


SUMS = Feature("sums", (TopicSpec(TOPIC),), open_sums, announced="sums", gauges=gauges, check=check)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in `ledgermq_broker.features`, which other modules have imported already."""
    for module in (features, composition, scrape):
        monkeypatch.setattr(module, "FEATURES", (*features.FEATURES, SUMS) if module is features else features.FEATURES)
    for module in (features, composition):
        monkeypatch.setattr(module, "ANNOUNCED", ("sums", *composition.ANNOUNCED))


async def add(cluster: Cluster, number: int) -> int:
    """Call the broker that owns the bundle, until it serves it."""
    answer: list[int] = []

    async def done(broker: Broker) -> bool:
        try:
            answer.append(await broker.opened.of(SUMS).add(number))
        except (NotOwner, Unavailable):
            return False
        return True

    async def somewhere() -> bool:
        return any([await done(broker) for broker in list(cluster.brokers.values()) if not answer])

    await until(somewhere, 30)
    return answer[0]


def owner(cluster: Cluster) -> str:
    return next(name for name, broker in cluster.brokers.items() if BUNDLE in broker.ownership.opened)


@in_cluster("a:1", "b:1")
async def test_a_declared_topic_is_created_served_shown_and_checked(cluster: Cluster) -> None:
    assert await add(cluster, 5) == 5
    assert await add(cluster, 2) == 7
    for broker in cluster.brokers.values():
        await until(lambda broker=broker: TOPIC in broker.metadata.catalog.topics_by_name)  # type: ignore[misc]
        assert broker.metadata.catalog.living(TOPIC).bundles == tuple(range(1, cluster.settings.bundles))
        assert "sums" in broker.membership.me.features
    first = owner(cluster)
    assert cluster.brokers[first].opened.of(SUMS).used_by(1) == {"sums": 7}
    registry = CollectorRegistry()
    registry.register(BrokerCollector(lambda: cluster.brokers[first], TopicTotals(10), StoreCosts(), RackTraffic()))
    assert "ledgermq_sums 7.0" in generate_latest(registry).decode()
    checked = Checked()
    broker = cluster.brokers[first]
    await features.check_features(StoredRoot(cluster.store, broker.context.cluster, broker.context.sources), checked)
    assert [problem.code for problem in checked.problems] == ["SUM_LOOKED_AT"]


@in_cluster("a:1", "b:1")
async def test_its_state_outlives_its_owner_and_grows_with_the_cluster(cluster: Cluster) -> None:
    assert await add(cluster, 5) == 5
    await cluster.stop(owner(cluster), graceful=False)
    assert await add(cluster, 2) == 7, "the next owner has read its records"
    [(name, left)] = cluster.brokers.items()
    await until(lambda: keys.METADATA_BUNDLE in left.ownership.opened, 30)
    more = cluster.settings.bundles + 2
    assert (await cluster.line(name).add_bundles(pb.AddBundlesRequest(bundles=more))).bundles == more
    assert left.metadata.catalog.living(TOPIC).bundles == tuple(range(1, more))


@in_cluster("a:1", "b:1")
async def test_it_waits_for_the_last_broker_that_does_not_announce_it(cluster: Cluster) -> None:
    controller = next(broker for broker in cluster.brokers.values() if keys.METADATA_BUNDLE in broker.ownership.opened)
    older = next(broker for broker in cluster.brokers.values() if broker is not controller)
    me = older.membership.me
    older.membership.me = replace(me, features=tuple(each for each in me.features if each != "sums"), release="0.1.9")
    await until(lambda: controller.membership.present()[older.broker_id].release == "0.1.9", 10)
    with pytest.raises(Unavailable, match="sums need every broker"):
        await controller.opened.of(SUMS).add(1)
    assert TOPIC not in controller.metadata.catalog.topics_by_name
