"""Read values at scrape time: the state of a broker, and its totals by topic.

The lag of groups is sampled instead (`group_lag`), and so is the age of messages of queues
(`queue_ages`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledgermq_broker.broker import Broker
from ledgermq_broker.costs.counted import CLUSTER, REST, StoreCosts
from ledgermq_broker.costs.path import CLUSTER_NAME
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.features import FEATURES
from ledgermq_broker.internal.feature import BUNDLES_MAX
from ledgermq_broker.metrics import names
from ledgermq_broker.metrics.topic_totals import OTHER, TopicTotals
from ledgermq_ledger.object_store.prices import PICO

BACKLOGS_MAX = 100
"""Topics with a backlog quota that have their own metrics: those that are farthest above it."""


class BrokerCollector(Collector):
    """`broker()` returns None while the broker is not up yet.

    Every family is yielded even then, without samples, so the names are always the same.
    """

    def __init__(
        self, broker: Callable[[], Broker | None], topics: TopicTotals, costs: StoreCosts, racks: RackTraffic
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._costs = costs
        self._racks = racks

    def collect(self) -> Iterable[Metric]:
        broker = self._broker()
        for families in _FAMILIES:
            yield from families(broker)
        yield from _by_topic(broker, self._topics)
        yield from _dollars(broker, self._topics, self._costs)
        yield from _traffic(self._racks)


def _info(broker: Broker | None) -> Iterable[Metric]:
    info = GaugeMetricFamily(
        names.BROKER_INFO,
        "1; the labels say what runs here",
        labels=("broker", "address", "version", "cluster_id", "root"),
    )
    if broker is not None:
        info.add_metric(
            (broker.broker_id, broker.address, broker.version, broker.cluster_id, broker.context.store.url), 1
        )
    yield info


def _memory(broker: Broker | None) -> Iterable[Metric]:
    context = broker.context if broker is not None else None
    taken, bound = (context.produce_memory.taken, context.produce_memory.bytes_max) if context else (None, None)
    yield GaugeMetricFamily(
        "ledgermq_produce_memory_bytes", "Bytes of batches that are admitted and not yet durable", taken
    )
    yield GaugeMetricFamily(
        "ledgermq_produce_memory_bytes_max",
        "Limit of ledgermq_produce_memory_bytes; above it producers get RESOURCE_EXHAUSTED and retry",
        bound,
    )
    yield GaugeMetricFamily(
        "ledgermq_cache_bytes",
        "Bytes of the newest batches kept for consumers",
        context.tail_cache.size_bytes if context else None,
    )


def _answers(broker: Broker | None) -> Iterable[Metric]:
    answers = broker.context.answers if broker else None
    by_reader = GaugeMetricFamily(
        "ledgermq_answer_memory_bytes",
        "Answers on their way to consumers, and the copies that are made of them, by what is known of the reader: fast,"
        " new or slow",
        labels=("reader",),
    )
    for standing, held in answers.held.items() if answers else ():
        by_reader.add_metric((standing.name.lower(),), held)
    yield by_reader
    yield GaugeMetricFamily(
        "ledgermq_answer_memory_bytes_in_line",
        "Bytes of answers that the connection has not taken yet",
        answers.in_line_bytes if answers else None,
    )
    yield GaugeMetricFamily(
        "ledgermq_answer_memory_bytes_max",
        "Limit of the memory for answers; above it readers wait",
        answers.bytes_max if answers else None,
    )
    yield GaugeMetricFamily(
        "ledgermq_waiting_readers",
        "Fetches that wait for room in the memory for answers",
        answers.waiting if answers else None,
    )
    yield CounterMetricFamily(
        "ledgermq_reader_connections_broken",
        "Connections that were broken because a reader took nothing while others waited",
        answers.cuts if answers else None,
    )


def _compaction(broker: Broker | None) -> Iterable[Metric]:
    rounds = broker.context.background_rounds if broker else None
    allowed, under_way = (rounds.allowed.is_set(), rounds.under_way) if rounds else (None, None)
    yield GaugeMetricFamily(
        "ledgermq_background_rounds_allowed", "1 while this broker may begin rounds of Parquet compaction", allowed
    )
    text = "Rounds of Parquet compaction under way, including the cleaning and deletion after each"
    yield GaugeMetricFamily("ledgermq_background_rounds_under_way", text, under_way)


def _tables(broker: Broker | None) -> Iterable[Metric]:
    behind = GaugeMetricFamily(
        "ledgermq_table_behind_seconds",
        "Time since the topic's table had all that Parquet has; 0 while it has",
        labels=("topic",),
    )
    held = GaugeMetricFamily(
        "ledgermq_table_held_bytes",
        "Bytes of Parquet files below the log start that stay because a version of the topic's table names them",
        labels=("topic", "format"),
    )
    foreign = GaugeMetricFamily(
        "ledgermq_table_foreign_objects",
        "Objects in the folder of a topic with a table that LedgerMQ did not put",
        labels=("topic",),
    )
    for state in list(broker.context.tables.values()) if broker else ():
        behind.add_metric((state.topic,), state.behind_s)
        held.add_metric((state.topic, "delta"), state.held_bytes)
        foreign.add_metric((state.topic,), len(state.foreign))
    unset = GaugeMetricFamily(
        "ledgermq_table_let_go",
        "1 for a topic whose table was unset because it held back more than table.hold.max.bytes, at the controller",
        labels=("topic",),
    )
    for topic in broker.tables_let_go() if broker else ():
        unset.add_metric((topic.name,), 1)
    yield from (behind, held, foreign, unset)


def _cuts(broker: Broker | None) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "ledgermq_automatic_cuts",
        "Automatic cuts that there are (cut_every_ms), at the controller; the other brokers have no sample",
        broker.cuts.kept() if broker else None,
    )
    yield GaugeMetricFamily(
        "ledgermq_automatic_cut_age_seconds",
        "Time since the newest automatic cut was taken, at the controller",
        broker.cuts.age_s() if broker else None,
    )
    yield CounterMetricFamily(
        "ledgermq_automatic_cuts_failed",
        "Automatic cuts that could not be taken; each is tried again",
        broker.cuts.failed if broker else None,
    )


def _membership(broker: Broker | None) -> Iterable[Metric]:
    live = len(broker.membership.live()) if broker else None
    yield GaugeMetricFamily("ledgermq_live_brokers", "Brokers that this broker counts as alive, itself included", live)
    age_s = broker.ownership.heartbeat_age_s() if broker else None
    yield GaugeMetricFamily(
        names.HEARTBEAT_AGE_SECONDS, "Time since this broker's heartbeat last reached the store", age_s
    )


def _bundles(broker: Broker | None) -> Iterable[Metric]:
    def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=("bundle", *more))

    opened = broker.ownership.opened if broker else {}
    yield GaugeMetricFamily(names.OWNED_BUNDLES, "Bundles that this broker owns", len(opened) if broker else None)
    yield GaugeMetricFamily(
        "ledgermq_draining",
        "1 while an operator has drained this broker (`ledgermq drain`)",
        broker.membership.is_draining if broker else None,
    )
    trouble = gauge(
        names.BUNDLE_TROUBLE, "1 for a bundle that should be served here and is not; the label says why", "code"
    )
    for bundle, found in broker.ownership.terms.troubles.items() if broker else ():
        trouble.add_metric((str(bundle), found.error.code), 1)
    epoch = gauge("ledgermq_bundle_epoch", "Epoch of the term in which this broker owns the bundle")
    slot = gauge("ledgermq_bundle_slot", "Newest durable segment of the bundle")
    untrimmed = gauge(
        "ledgermq_untrimmed_segments",
        "Segments of the bundle that are not in Parquet yet, or kept by a parked partition, an open transaction or a"
        " timed message that is due within minutes",
    )
    parked = gauge(
        names.PARKED_PARTITIONS, "Partitions of the bundle that Parquet compaction has parked; run `ledgermq repair`"
    )
    age = gauge(
        "ledgermq_compaction_lag_seconds",
        "Age of the oldest record of the bundle's user topics, or timed message, that waits to become Parquet, without"
        " the time that a quiet partition may wait longer",
    )
    backlog = gauge(
        "ledgermq_compaction_backlog_bytes",
        "Bytes of the bundle's user topics, and of timed messages, that wait to become Parquet",
    )
    ids = gauge(
        "ledgermq_message_ids",
        "Ids of messages that the bundle remembers for deduplication; at `producer_states_max` of the cluster it takes"
        " no further ones",
    )
    moving = gauge(
        "ledgermq_moving_partitions", "Partitions on their way to the bundle: the old one has not handed its files over"
    )
    to = (
        Counter(topic.bundles[number] for topic, number, _ in broker.metadata.catalog.moving()) if broker else Counter()
    )
    for bundle in sorted(opened)[:BUNDLES_MAX]:
        status, labels = opened[bundle].status(), (str(bundle),)
        epoch.add_metric(labels, status.epoch)
        slot.add_metric(labels, status.slot)
        untrimmed.add_metric(labels, status.untrimmed_slots)
        parked.add_metric(labels, status.parked)
        moving.add_metric(labels, to[bundle])
        age.add_metric(labels, status.compaction_age_ms / 1000)
        backlog.add_metric(labels, status.compaction_bytes)
        ids.add_metric(labels, status.message_ids)
    yield from (trouble, epoch, slot, untrimmed, parked, moving, age, backlog, ids)


def _features(broker: Broker | None) -> Iterable[Metric]:
    for feature in FEATURES:
        for gauge in feature.gauges(broker.opened.of(feature) if broker else None):
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)
            for labels, value in gauge.samples:
                family.add_metric(labels, value)
            yield family


def _backlogs(broker: Broker | None) -> Iterable[Metric]:
    behind = GaugeMetricFamily(
        "ledgermq_backlog_bytes",
        "Bytes between the slowest group and the end of a partition, the largest of the topic; only of topics with a"
        " backlog quota",
        labels=("topic",),
    )
    above = GaugeMetricFamily(
        "ledgermq_backlog_partitions_above_quota",
        "Partitions served here whose backlog is above the quota of their topic",
        labels=("topic",),
    )
    largest: Counter[str] = Counter()
    exceeding: Counter[str] = Counter()
    for found in broker.backlogs.checked.values() if broker else ():
        largest[found.topic.name] = max(found.backlog_bytes, largest[found.topic.name])
        exceeding[found.topic.name] += bool(found.excess)
    for topic in sorted(largest, key=lambda name: (-exceeding[name], -largest[name], name))[:BACKLOGS_MAX]:
        behind.add_metric((topic,), largest[topic])
        above.add_metric((topic,), exceeding[topic])
    yield from (behind, above)


def _by_topic(broker: Broker | None, topics: TopicTotals) -> Iterable[Metric]:
    def counter(name: str, text: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, text, labels=("topic",))

    records_in, bytes_in = (
        counter(names.PRODUCED_RECORDS, "Records that became durable"),
        counter(names.PRODUCED_BYTES, "Bytes of their batches"),
    )
    batches_in = counter("ledgermq_produced_batches", "Batches that became durable")
    records_out, bytes_out = (
        counter(names.FETCHED_RECORDS, "Records sent to consumers"),
        counter(names.FETCHED_BYTES, "Bytes of their batches"),
    )
    batches_left_out, records_left_out, bytes_left_out = (
        counter("ledgermq_filtered_batches", "Batches that were not sent, because a consumer's filter leaves them out"),
        counter("ledgermq_filtered_records", "Records of these batches"),
        counter("ledgermq_filtered_bytes", "Bytes of these batches"),
    )
    families = (
        *(records_in, bytes_in, batches_in, records_out, bytes_out),
        *(batches_left_out, records_left_out, bytes_left_out),
    )
    if broker is not None:
        for label, totals in topics.named(_names(broker)):
            found = (
                *(totals.records_in, totals.bytes_in, totals.batches_in, totals.records_out, totals.bytes_out),
                *(totals.batches_left_out, totals.records_left_out, totals.bytes_left_out),
            )
            for family, value in zip(families, found, strict=True):
                family.add_metric((label,), value)
    yield from families


def _dollars(broker: Broker | None, topics: TopicTotals, costs: StoreCosts) -> Iterable[Metric]:
    family = CounterMetricFamily(
        "ledgermq_store_topic_dollars",
        "Estimated price of the counted requests by the topic that they were made for, in dollars; (cluster): for none",
        labels=("topic",),
    )
    if broker is not None:
        topic_names = _names(broker)
        spent: Counter[int] = Counter()
        for payer, found in costs.by_payer(topic_names).items():
            spent[payer.topic_id] += found.total
        labels: Counter[str] = Counter({CLUSTER_NAME: spent.pop(CLUSTER.topic_id), OTHER: spent.pop(REST.topic_id)})
        for topic_id, amount in spent.items():
            labels[OTHER if topics.of(topic_id) is topics.other else topic_names[topic_id]] += amount
        for label, amount in labels.items():
            family.add_metric((label,), amount / PICO)
    yield family


def _traffic(racks: RackTraffic) -> Iterable[Metric]:
    family = CounterMetricFamily(
        "ledgermq_client_bytes",
        "Bytes of requests (in) and answers (out) of clients; rack: same or other than this broker's, or unknown",
        labels=("direction", "rack"),
    )
    for kind, traffic in racks.by_kind.items():
        family.add_metric(("in", kind), traffic.bytes_in)
        family.add_metric(("out", kind), traffic.bytes_out)
    yield family


def _names(broker: Broker) -> dict[int, str]:
    return {topic.id: topic.name for topic in broker.metadata.catalog.topics_by_id.values() if not topic.removed}


_FAMILIES: tuple[Callable[[Broker | None], Iterable[Metric]], ...] = (
    _info,
    _memory,
    _answers,
    _compaction,
    _tables,
    _cuts,
    _membership,
    _bundles,
    _features,
    _backlogs,
)
