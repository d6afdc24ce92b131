"""Run a broker inside the client's own process, behind a root URL.

On a store that processes share it also listens on a free local port, so that the embedded brokers
of several processes are one cluster. On ``memory://name`` all brokers of this process on the same
name are one cluster, connected by direct calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.protocol.api import Connection, Connector
from ledgermq.sources import Sources
from ledgermq_broker.broker import Broker
from ledgermq_broker.node import Node
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from ledgermq_broker.ports.tls import followed_certificates, tls_to_peers
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import load_settings
from ledgermq_broker.settings.sources import file_of_environment
from ledgermq_ledger.open_root import cluster_of, opened
from ledgermq_ledger.root.open import open_store

_networks: dict[str, Network] = {}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Embedded:
    """A client's way to the cluster, by `connector` at `addresses`; `close` hands the broker's
    bundles over and stops it.
    """

    connector: Connector
    addresses: Sequence[str]
    close: Callable[[], Awaitable[None]]


async def open_embedded(
    url: str, *, must_exist: bool = False, sources: Sources | None = None, settings: BrokerSettings | None = None
) -> Embedded:
    """Start a broker in this process. Raises InvalidConfig, Unauthorized, StoreUnusable,
    FormatNotSupported, DataDamaged, Unavailable.

    `must_exist`: raise NoCluster if the root holds no cluster, instead of creating one.
    """
    chosen = settings or embedded_settings()
    if must_exist:
        async with opened(url, sources or Sources()) as store:
            await cluster_of(store)
    if url.startswith("memory:"):
        return await _open_in_memory(url, chosen, sources or Sources())
    async with AsyncExitStack() as starting:
        given = sources or Sources()
        certificates = await starting.enter_async_context(followed_certificates(chosen, given))
        node = await Node.start(url, chosen, given, certificates=certificates)
        starting.push_async_callback(node.stop)
        network = Network()
        network.listen(node.address, node.broker.service)
        connector = OwnFirst(
            network, GrpcConnector(tls=tls_to_peers(chosen), credential=node.broker.credentials.credential)
        )
        return Embedded(connector, [node.address], starting.pop_all().aclose)


def embedded_settings() -> BrokerSettings:
    """Return the settings from file and variables, as for a broker, but never its identity: a
    command beside a broker must not take its place.
    """
    return load_settings(file_of_environment(), port=0).model_copy(
        update={
            "broker_id": None,
            "advertised_address": None,
            "peer_address": None,
            "kafka_port": None,
            "reserve_bytes": 0,
        }
    )


async def _open_in_memory(url: str, settings: BrokerSettings, sources: Sources) -> Embedded:
    store = await open_store(url, sources=sources)
    network = _networks.setdefault(store.url, Network())
    connector = InProcessConnector(network)
    address = f"embedded-{next(_numbers)}:0"
    broker = await Broker.start(store, sources, settings, address, connector)
    network.listen(address, broker.service)

    async def close() -> None:
        await broker.stop()
        network.stop_listening(address)
        if not network.addresses():
            _networks.pop(store.url, None)

    return Embedded(connector, [address], close)


class OwnFirst(Connector):
    """Connect directly to the broker of this process, and by gRPC to all others, with the credentials of
    this process's broker: a process that holds those of the root may do what a broker may.
    """

    def __init__(self, own: Network, others: GrpcConnector) -> None:
        self._own = own
        self._grpc = others

    def connect(self, address: str) -> Connection:
        return (
            InProcessConnector(self._own).connect(address)
            if address in self._own.addresses()
            else self._grpc.connect(address)
        )
