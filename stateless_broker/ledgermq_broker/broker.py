"""One broker of a cluster, from its start to its end.

It runs in any event loop with the `Sources` and `Connector` given. A process gives real ones; an
embedded cluster and the simulator give their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.errors import InvalidConfig
from ledgermq.protocol.api import Connector
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.composition import Composition, bundle_limits
from ledgermq_broker.filter_functions.judging import FilterFunctions
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.topic_changes import TopicLimits
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.settings.processes import from_settings
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import open_cluster
from ledgermq_ledger.fsck.cluster_fit import check_fit
from ledgermq_ledger.object_store.contract import ObjectStore

log = get_logger(__name__)


class Broker(Composition):
    """One broker; clients and other brokers call `service`. `opened`: its features, by `ledgermq_broker.features`.

    `failed` is the error that ended the broker, if it ended because of an error.
    """

    @classmethod
    async def start(
        cls,
        store: ObjectStore,
        sources: Sources,
        settings: BrokerSettings,
        address: str,
        connector: Connector,
        run_blocking: RunBlocking = asyncio.to_thread,
        metrics: BundleMetrics | None = None,
        constants: BrokerConstants | None = None,
        counts: Sequence[object] = (),
        functions: FilterFunctions | None = None,
        kafka_address: str = "",
    ) -> Broker:
        """Start a broker that takes part in the cluster of this root; `run_blocking` runs Arrow and
        Parquet work (default: in threads). `counts`: observers of features, such as `QuotaCounts`.

        Raises FormatNotSupported, DataDamaged, the store's errors.
        """
        cluster = await open_cluster(store, sources, settings.cluster_defaults(constants), settings.cluster_id)
        await check_fit(store, cluster)
        broker = cls(
            store,
            sources,
            settings,
            cluster,
            address,
            connector,
            run_blocking,
            metrics,
            constants,
            counts,
            functions,
            kafka_address,
        )
        if settings.security == "auto":
            await broker.rules.enforce_what_is_kept(broker.context.ledger(keys.METADATA_BUNDLE))
        await broker.membership.join(broker._features)
        try:
            broker.rules.refuse_beside_old_brokers()
        except InvalidConfig:
            await broker.membership.leave()
            raise
        broker._run = asyncio.create_task(broker._main(), name=f"broker {broker.broker_id}")
        log.info("broker started", broker=broker.broker_id, address=address, root=store.url, cluster=cluster.cluster_id)
        return broker

    async def stop(self, graceful: bool = True) -> None:
        """Stop gracefully: flush, hand the bundles over to other brokers, and leave the cluster.

        With `graceful` False: drop everything, as a killed process would.
        """
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])
        if graceful:
            await self.ownership.stop()
        await self.ownership.close()
        await self.internal.close()
        await self.opened.close()
        await self._functions.close()
        log.info("broker stopped", broker=self.broker_id, graceful=graceful)

    def apply(self, settings: BrokerSettings) -> None:
        """Apply the live settings of `settings` (see `settings.LIVE`). The others take effect at
        the next start.
        """
        self.settings = settings
        self.context.take_limits(bundle_limits(settings, self.context.store.url))
        self.ownership.times = self._times(settings, self.membership.interval_s)
        self.controller.limits = from_settings(TopicLimits, settings)
        self._fetch_path.wait_s_max = settings.fetch_wait_ms_max / 1000
        self.rules.take_supers(settings.supers())
        self.rules.delegates = settings.trusted()

    async def _main(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.ownership.run(), name="ownership")
                group.create_task(self.ownership.pulse.run(), name="pulse")
                group.create_task(self.metadata.run(), name="metadata")
                group.create_task(self.controller.run(), name="controller")
                group.create_task(self.cuts.run(), name="automatic cuts")
                group.create_task(self.rules.run(), name="access rules")
                group.create_task(self.backlogs.run(), name="backlog quotas")
                group.create_task(self.context.write_gate.run(self.settings.reserve_bytes), name="write gate")
        except BaseExceptionGroup as failed:
            log.error("broker failed", error=str(failed.exceptions[0]))
            await self.ownership.stop()
            if not self.failed.done():
                self.failed.set_result(failed.exceptions[0])
