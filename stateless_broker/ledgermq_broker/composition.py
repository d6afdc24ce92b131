"""Compose one broker from membership, ownership, metadata, controller and service. This is the
composition root, without gRPC.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from importlib.metadata import version

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi, Connector
from ledgermq.sources import Sources
from ledgermq.telemetry.switch import make_tracing
from ledgermq_broker.access.door import Door
from ledgermq_broker.access.freshness import Everywhere, RulesInForce
from ledgermq_broker.access.identity.broker_identity import BrokerCredentials, BrokerProofs, KeyPair
from ledgermq_broker.access.quota_counts import QuotaCounts
from ledgermq_broker.access.quota_path import QuotaPath
from ledgermq_broker.access.rule_path import RulePath
from ledgermq_broker.access.scram_path import ScramPath
from ledgermq_broker.admission.fair_window import FairWindow
from ledgermq_broker.backlogs.counts import BacklogCounts
from ledgermq_broker.backlogs.quotas import Backlogs
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits, BundleMetrics
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import ENFORCING
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.cluster.owners import OwnershipTimes
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.cluster.peers import Peers
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.cuts.automatic import AutomaticCuts
from ledgermq_broker.cuts.holding import Holding
from ledgermq_broker.cuts.path import CutPath
from ledgermq_broker.cuts.taking import Taking
from ledgermq_broker.exclusive.holders import EXCLUSIVE
from ledgermq_broker.features import ANNOUNCED, FEATURES
from ledgermq_broker.filter_functions.judging import FilterFunctions, NoFilterFunctions
from ledgermq_broker.groups.groups import GROUPS
from ledgermq_broker.health.readiness import Alarms
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.internal.feature import BrokerParts, one_of
from ledgermq_broker.internal.term import TermParts
from ledgermq_broker.internal.terms import InternalTerms
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Metadata, Source
from ledgermq_broker.metadata.topic_changes import TopicLimits
from ledgermq_broker.paths.append_spans import AppendSpans
from ledgermq_broker.paths.fetching.fetch_path import FetchPath
from ledgermq_broker.paths.fetching.giving_way import GivingWay
from ledgermq_broker.paths.produce_path import ProducePath
from ledgermq_broker.paths.received_batches import BatchChecks
from ledgermq_broker.paths.value_checks import ValueChecks
from ledgermq_broker.queues.shares import QUEUES
from ledgermq_broker.schemas.path import SchemaPath
from ledgermq_broker.service import BrokerService, ClusterPath, service_of
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.by_store import giving_way_share, shared_within_s
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.settings.processes import from_settings
from ledgermq_broker.timed.timers import TIMED
from ledgermq_broker.transactions.transactions import TRANSACTIONS
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.copies import copies_of
from ledgermq_ledger.root.store_clock import StoreClock
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_ledger.topics.tables import let_go_alarm
from ledgermq_ledger.topics.topic import Topic

log = get_logger(__name__)


class Composition:
    """The parts of a broker, and what they ask of one another. Nothing runs yet."""

    def __init__(
        self,
        store: ObjectStore,
        sources: Sources,
        settings: BrokerSettings,
        cluster: ClusterSettings,
        address: str,
        connector: Connector,
        run_blocking: RunBlocking = asyncio.to_thread,
        metrics: BundleMetrics | None = None,
        constants: BrokerConstants | None = None,
        counts: Sequence[object] = (),
        functions: FilterFunctions | None = None,
        kafka_address: str = "",
    ) -> None:
        self.broker_id = settings.broker_id or f"b-{sources.new_id().hex()[:12]}"
        self.address = address
        self.cluster_id = cluster.cluster_id
        self.version = version("ledgermq")
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.settings = settings
        self._constants = constants or BrokerConstants()
        self._counts = counts
        self._functions = functions or NoFilterFunctions()
        self._clocks = TwoClocks(store, sources)
        self._store_clock = StoreClock(store)
        self.alarms = Alarms()
        pair = KeyPair(sources)
        self.membership = self._new_membership(store, sources, pair.public, kafka_address)
        self.credentials = BrokerCredentials(pair, self.membership, self._store_clock.now_us)
        self.directory = Directory(cluster.bundles)
        interval_s = self.membership.interval_s
        self._peers = Peers(connector.proving(self.credentials.credential), interval_s, self._peer_lost)
        self.metadata = Metadata(
            LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources),
            self._metadata_source,
            self._peers.connection,
            self._catalog_changed,
            lambda: not self.rules.enforced,
        )
        self.rules = RulesInForce(
            self.metadata, self.membership, settings.supers(), settings.trusted(), enforced=settings.security == "rules"
        )
        tracing = make_tracing(settings.tracing, "local", sources.now_us)
        self._spans = None if tracing is None else AppendSpans(tracing, self.broker_id)
        self.context = self._new_context(store, sources, cluster, metrics or BundleMetrics(), run_blocking)
        times = self._times(settings, interval_s)
        self.ownership = Ownership(
            self.membership, self._peers, self.directory, self.context, sources, times, self._ownership_changed
        )
        self.ownership.on_leave = self.rules.withdraw
        self._add_alarms(store)
        self.controller = self._new_controller()
        self.calls = BundleCalls(self._asked)
        self.service = self._put_service_together(run_blocking)
        proofs = BrokerProofs(self.membership, self._store_clock.now_us)
        self.door = Door(
            self.service, self.rules, proofs, sources, one_of(counts, QuotaCounts), self.transactions.has_staged
        )
        self._run: asyncio.Task[None] | None = None

    def _new_membership(self, store: ObjectStore, sources: Sources, public_key: str, kafka_address: str) -> Membership:
        settings = self.settings
        return Membership(
            store,
            sources,
            self.broker_id,
            self.address,
            settings.heartbeat_interval_s(store.url),
            settings.peer_address or "",
            self._clocks.learn,
            settings.rack,
            self.alarms.now,
            self.version,
            on_store_time_reached=self._store_clock.learn,
            public_key=public_key,
            kafka_address=kafka_address,
        )

    def _new_context(
        self,
        store: ObjectStore,
        sources: Sources,
        cluster: ClusterSettings,
        metrics: BundleMetrics,
        run_blocking: RunBlocking,
    ) -> BundleContext:
        return BundleContext(
            store,
            sources,
            cluster,
            self.broker_id,
            lambda: self.metadata.catalog,
            bundle_limits(self.settings, store.url),
            metrics,
            run_blocking,
            self._store_clock.now_us,
            self._kept,
            self._bring,
            self._let_go_of_table,
            None if self._spans is None else self._spans.putting,
        )

    def _new_controller(self) -> Controller:
        return Controller(
            self.context.compaction,
            self.metadata,
            self.ownership,
            from_settings(TopicLimits, self.settings),
            FEATURES,
            self.membership.lacking,
            self._prepare_move,
        )

    def _add_alarms(self, store: ObjectStore) -> None:
        for alarms in (self.rules.alarms, self._parked, self._takes_no_records, self.context.table_alarms):
            self.alarms.add(alarms)
        self.alarms.add(lambda: [let_go_alarm(topic) for topic in self.tables_let_go()])
        if (copies := copies_of(store)) is not None:
            self.alarms.add(lambda: sorted(copies.damaged.values()))

    def _put_service_together(self, run_blocking: RunBlocking) -> BrokerService:
        values = ValueChecks(self.metadata, run_blocking)
        checks = BatchChecks(run_blocking, self._check_backlog, self.context.append_now_us, values.check, self._spans)
        window = FairWindow(shared_within_s(self.context.store.url))
        produce_path = ProducePath(self.metadata, self.ownership, checks, self.context.metrics, window, self.calls.at)
        self._fetch_path = self._new_fetch_path()
        at_controller = AtController(self.address, self.ownership, self.metadata, self._peers.connection)
        sources = self.context.sources
        terms = TermParts(lambda: self.metadata.catalog, sources, lambda: self.ownership.times.damaged_retry_s)
        self.internal = InternalTerms(self.ownership, terms)
        parts = self._open_features(checks, produce_path, at_controller)
        for serving in self.opened:
            self.alarms.add(serving.alarms)
        self.backlogs = Backlogs(
            self.metadata,
            self.ownership,
            self._broker,
            self.groups,
            self.shares,
            self._passed_us,
            one_of(self._counts, BacklogCounts),
        )
        rule_path = RulePath(
            self.controller,
            at_controller,
            self.metadata,
            self.rules,
            Everywhere(self.membership, self._peers.connection),
            sources,
            self.membership.me.session,
        )
        costs = parts.counts_of(StoreCosts)
        costs.on_spent = self.rules.usages.spend
        quota_path = QuotaPath(
            at_controller, self.metadata, rule_path.put, sources, self.rules.usages, self._tables_used_by, costs
        )
        scram_path = ScramPath(at_controller, self.metadata, rule_path.put, self.rules, sources)
        ledger = self.context.ledger(keys.METADATA_BUNDLE)
        cluster_path = ClusterPath(ledger, self.version, self.membership, self.directory, self.ownership)
        schema_path = SchemaPath(self.controller, at_controller, self.metadata, self.context.sources, run_blocking)
        cut_path = self._new_cut_path(at_controller, run_blocking)
        return service_of(
            parts, cluster_path, self._fetch_path, rule_path, quota_path, scram_path, schema_path, cut_path
        )

    def _new_cut_path(self, at_controller: AtController, run_blocking: RunBlocking) -> CutPath:
        compaction = self.context.compaction
        taking = Taking(compaction, self.controller, self.metadata, self.calls)
        self.cuts = AutomaticCuts(taking, self.context, self.ownership, lambda: self.settings)
        self.alarms.add(self.cuts.alarms)
        holding = Holding(self.ownership, self.context, self.transactions.is_quiet, self.transactions.drained)
        return CutPath(compaction, self.metadata, self.controller, at_controller, taking, holding, run_blocking)

    def _new_fetch_path(self) -> FetchPath:
        settings, root_url = self.settings, self.context.store.url
        return FetchPath(
            self.metadata,
            self.ownership,
            settings.fetch_wait_ms_max / 1000,
            self.context.metrics,
            self.context.answers,
            direct=settings.shares_locations(root_url),
            functions=self._functions,
            give_way=lambda: GivingWay(self.context.produce_memory, giving_way_share(root_url)),
        )

    def _open_features(
        self, checks: BatchChecks, produce_path: ProducePath, at_controller: AtController
    ) -> BrokerParts:
        parts = BrokerParts(
            address=self.address,
            settings=lambda: self.settings,
            constants=self._constants,
            counts=self._counts,
            context=self.context,
            ownership=self.ownership,
            metadata=self.metadata,
            controller=self.controller,
            at_controller=at_controller,
            terms=self.internal,
            clocks=self._clocks,
            store_clock=self._store_clock,
            calls=self.calls,
            asked=self._asked,
            rack_of=self._rack_of,
            checks=checks,
            produce_path=produce_path,
        )
        self.opened = parts.opened
        self.opened.open_all(FEATURES, parts)
        self.groups, self.transactions = self.opened.of(GROUPS), self.opened.of(TRANSACTIONS)
        self.timers, self.shares = self.opened.of(TIMED), self.opened.of(QUEUES)
        self.holders = self.opened.of(EXCLUSIVE)
        return parts

    def _tables_used_by(self, principal: int) -> dict[str, int]:
        """Return what a principal (a hash of its name) has in this broker of the tables that all share."""
        found: Counter[str] = Counter()
        for table in (*self.ownership.terms.opened.values(), *self.opened):
            found.update(table.used_by(principal))
        return {name: found[name] for name in sorted(found)}

    def _features(self) -> tuple[str, ...]:
        """Decide whether rules are enforced, if that depends on the other brokers; return what this broker has."""
        if self.settings.security == "auto":
            self.rules.follow_others()
        return (*ANNOUNCED, ENFORCING) if self.rules.is_decided else ANNOUNCED

    def _times(self, settings: BrokerSettings, interval_s: float) -> OwnershipTimes:
        constants = self._constants
        return OwnershipTimes(
            interval_s,
            settings.holding_ms / 1000,
            constants.damaged_retry_s,
            constants.ownership_wait_s,
            constants.loads,
        )

    def _broker(self, address: str) -> BrokerApi:
        return self.service if address == self.address else self._peers.connection(address)

    def _kept(self, bundle: int, place: PartitionId) -> Sequence[str]:
        return self.internal.kept(bundle, place)

    async def _bring(self, source: int, target: int, places: Collection[PartitionId]) -> None:
        await self.internal.bring(self.context.ledger(source), target, places)

    async def _let_go_of_table(self, topic: Topic, held_bytes: int) -> None:
        request = pb.AlterTopicRequest(name=topic.name, topic_id=topic.id, table_held_bytes=held_bytes)
        request.let_go_table = topic.settings.table_generation
        await self.service.alter_topic(request)

    def tables_let_go(self) -> list[Topic]:
        """Return the topics whose tables were unset because of what they held back. Only the controller says it, so
        that each is named once.
        """
        return self.context.topics_let_go() if keys.METADATA_BUNDLE in self.ownership.opened else []

    def _asked(self, bundle: int, named: str) -> tuple[str, BrokerApi]:
        """See `BundleCalls`."""
        whom = named or self.ownership.address_of(bundle) or self.address
        return whom, self._broker(whom)

    async def _prepare_move(self, bundle: int, key: PartitionId, dry_run: bool) -> None:
        request = pb.PrepareMoveRequest(topic_id=key.topic_id, partition=key.partition, dry_run=dry_run)
        await self.calls.at(bundle, lambda broker: broker.prepare_move(request))

    def _check_backlog(self, topic: Topic, partition: int) -> None:
        self.backlogs.check_batch(topic, partition)

    def _passed_us(self) -> int | None:
        """Return a time that the clocks of the store and of this machine have passed; None if it is not known."""
        store_us = self._store_clock.now_us()
        return None if store_us is None else min(store_us, self.context.sources.now_us())

    def _rack_of(self, bundle: int) -> str:
        owner = self.directory.owners.get(bundle)
        return owner.rack if owner is not None else ""

    def _metadata_source(self) -> Source | None:
        opened = self.ownership.opened.get(keys.METADATA_BUNDLE)
        if opened is not None and opened.lost is None:
            return opened
        address = self.ownership.address_of(keys.METADATA_BUNDLE)
        return address if address and address != self.address else None

    def _peer_lost(self, broker: str, refused: bool) -> None:
        self.ownership.report_lost(broker, refused)

    def _parked(self) -> list[str]:
        return [alarm for _, owner in sorted(self.ownership.opened.items()) for alarm in owner.parked()]

    def _takes_no_records(self) -> list[str]:
        refusal = self.ownership.write_refusal
        return [f"the object store takes no records, reads go on: {refusal.message}"] if refusal is not None else []

    def _catalog_changed(self) -> None:
        if self.directory.grow(self.metadata.catalog.bundles(self.context.cluster)):
            log.info("bundles added", bundles=len(self.directory.claims))
            self.ownership.bundles_added()
        self.rules.catalog_changed()
        self.internal.catalog_changed()
        self.backlogs.catalog_changed()
        for owner in self.ownership.opened.values():
            owner.catalog_changed()

    def _ownership_changed(self) -> None:
        self.metadata.ownership_changed()
        self.controller.ownership_changed()
        self.internal.ownership_changed()


def bundle_limits(settings: BrokerSettings, root_url: str) -> BundleLimits:
    return from_settings(BundleLimits, settings, flush_spacing_s=settings.flush_spacing_s(root_url))
