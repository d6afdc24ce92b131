"""Run a node: a broker behind its gRPC server, on a root URL.

`ledgermq broker`, `ledgermq dev` and an embedded cluster each start one.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.errors import InvalidConfig
from ledgermq.filters.functions import installed
from ledgermq.protocol.api import Connector
from ledgermq.runtime.tasks import end
from ledgermq.sources import Sources
from ledgermq_broker.access.identity.jwt import Issuer, SignedTokens, fetch_by_http
from ledgermq_broker.admission.connections import Connections
from ledgermq_broker.admission.operator_path import ProcessNumbers
from ledgermq_broker.broker import Broker
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.filter_functions.judging import FilterFunctionCounts
from ledgermq_broker.filter_functions.processes import ProcessFunctions
from ledgermq_broker.health.readiness import Health
from ledgermq_broker.health.store_wait import when_store_answers
from ledgermq_broker.logs import get_logger
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.grpc_server import CALLS_MAX, GrpcServer
from ledgermq_broker.ports.tls import Certificates, tls_to_peers
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.probe import probe_store
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from ledgermq_ledger.root.open import open_store

if TYPE_CHECKING:
    from ledgermq_broker.kafka.opening import KafkaPort

PEER_TIMEOUT_S = 10.0
_STATM = Path("/proc/self/statm")
GRACE_S = 1.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Observers of the parts of a node; no-ops by default. `counts`: of features, by their types, such as
    `QuotaCounts`.
    """

    store: StoreMeter | None = None
    calls: CallMeter = field(default_factory=CallMeter)
    owners: BundleMetrics = field(default_factory=BundleMetrics)
    counts: Sequence[object] = ()
    functions: FilterFunctionCounts = field(default_factory=FilterFunctionCounts)
    costs: StoreCosts = field(default_factory=StoreCosts)
    """Counts the requests that `store` counts, which hands them on; alone if there is no `store`."""
    racks: RackTraffic = field(default_factory=RackTraffic)


class OwnProcess(ProcessNumbers):
    def read(self) -> Mapping[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        with suppress(OSError, ValueError, IndexError):  # no Linux
            pages = int(_STATM.read_text(encoding="ascii").split()[1])
            return {"memory_bytes": float(pages * resource.getpagesize()), "cpu_s": used.ru_utime + used.ru_stime}
        return {"cpu_s": used.ru_utime + used.ru_stime}


class Node:
    """`address`: the address by which clients and other brokers reach it."""

    def __init__(self, store: ObjectStore, server: GrpcServer, broker: Broker, settings: BrokerSettings) -> None:
        self.store = store
        self.broker = broker
        self.address = broker.address
        self._server = server
        self._settings = settings
        self._following: asyncio.Task[None] | None = None
        self._kafka: KafkaPort | None = None
        self._costs = StoreCosts()

    @property
    def kafka_address(self) -> str | None:
        """Return where clients of the Kafka protocol reach it; None if they do not."""
        return None if self._kafka is None else self._kafka.address

    @classmethod
    async def start(
        cls,
        url: str,
        settings: BrokerSettings,
        sources: Sources,
        *,
        hooks: Hooks | None = None,
        wait_for_store: Health | None = None,
        certificates: Certificates | None = None,
    ) -> Node:
        """Start a node. `wait_for_store`: report and wait while the store does not answer; without
        it, a store that does not answer is an error. `certificates`: of the port; None: no TLS.

        Raises InvalidConfig, Unauthorized, StoreUnusable, FormatNotSupported, DataDamaged,
        Unavailable.
        """
        observers = hooks or Hooks()
        observers.costs.prices = settings.prices(url)
        observers.racks.rack = settings.rack
        issuer = issuer_of(settings)
        store = await open_store(url, sources=sources, meter=observers.store or observers.costs, mends=True)
        server = GrpcServer(CALLS_MAX, observers.calls, connections := Connections(sources.now_ms), observers.racks)
        kafka: KafkaPort | None = None
        try:
            kafka = await _open_kafka(settings, certificates)
            asks_clients = settings.tls_client_auth == "required"
            credentials = None if certificates is None else certificates.grpc_credentials(asks_clients=asks_clients)
            port = await server.listen(settings.host, settings.port, credentials)
            connector = GrpcConnector(request_timeout_s=PEER_TIMEOUT_S, tls=tls_to_peers(settings))

            async def join() -> Broker:
                await (probe_store(store, sources, attempts_max=1) if wait_for_store else probe_store(store, sources))
                kafka_address = "" if kafka is None else kafka.address
                return await _join(store, sources, settings, port, connector, observers, connections, kafka_address)

            broker = await (when_store_answers(join, store.url, wait_for_store, sources) if wait_for_store else join())
        except BaseException:
            if kafka is not None:
                await kafka.stop()
            await server.stop(0)
            await store.close()
            raise
        node = cls(store, server, broker, settings)
        node._costs = observers.costs
        if issuer is not None:
            signed = SignedTokens(issuer, sources, fetch_by_http, broker.rules.next_generation)
            broker.rules.signed = signed
            node._following = asyncio.create_task(signed.run(), name="keys of the identity provider")
        await server.serve(broker.service, broker.door)
        if kafka is not None:
            node._kafka = kafka
            await kafka.serve(broker, settings, observers.calls, connections)
            log.info("Kafka port open", advertised=kafka.address)
        return node

    def apply(self, settings: BrokerSettings) -> None:
        """Apply the live settings of these."""
        self._settings = settings
        self._costs.prices = settings.prices(self.store.url)
        self.broker.apply(settings)

    async def stop(self) -> None:
        """Hand bundles over within the configured time, then end all calls."""
        await self._server.drain()
        try:
            async with asyncio.timeout(self._settings.shutdown_ms / 1000):
                await self.broker.stop()
        except TimeoutError:
            log.warning("not everything was handed over in time", shutdown_ms=self._settings.shutdown_ms)
            await self.broker.stop(graceful=False)
        if self._kafka is not None:
            await self._kafka.stop()
        await self._server.stop(GRACE_S)
        if self._following is not None:
            await end(self._following)
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def _join(
    store: ObjectStore,
    sources: Sources,
    settings: BrokerSettings,
    port: int,
    connector: Connector,
    observers: Hooks,
    connections: Connections,
    kafka_address: str,
) -> Broker:
    """Start the broker of a node, which joins the cluster."""
    await asyncio.to_thread(pa.scalar, 0)  # imports pandas if it is installed: now, not in the first request
    return await Broker.start(
        store,
        sources,
        settings,
        advertised_address(settings, port),
        connector,
        metrics=observers.owners,
        counts=(*observers.counts, observers.costs, observers.racks, connections, OwnProcess()),
        functions=ProcessFunctions(installed(), lambda: settings.filter_message_ms_max / 1000, observers.functions),
        kafka_address=kafka_address,
    )


async def _open_kafka(settings: BrokerSettings, certificates: Certificates | None) -> KafkaPort | None:
    """Open the port for clients of the Kafka protocol, if the settings name one. Raises InvalidConfig."""
    if settings.kafka_port is None:
        return None
    from ledgermq_broker.kafka.opening import KafkaPort  # late: it needs an extra

    return await KafkaPort.open(settings, certificates)


def issuer_of(settings: BrokerSettings) -> Issuer | None:
    """Return the identity provider that the settings name. Raises InvalidConfig."""
    if settings.jwt_issuer is None:
        return None
    if settings.security != "rules":
        raise InvalidConfig("jwt_issuer needs security = rules: otherwise no caller has to prove itself")
    return Issuer(settings.jwt_issuer, settings.jwt_audience, settings.jwt_keys_url or "", settings.jwt_groups_claim)


def advertised_address(settings: BrokerSettings, port: int) -> str:
    if settings.advertised_address:
        return settings.advertised_address
    everywhere = settings.host in ("0.0.0.0", "::", "")
    host = socket.gethostname() if everywhere else settings.host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
