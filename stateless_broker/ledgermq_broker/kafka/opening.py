"""Open the port for clients of the Kafka protocol, as the settings of a broker say."""

from __future__ import annotations

import asyncio
import socket

from ledgermq.errors import InvalidConfig
from ledgermq_broker.admission.connections import Connections
from ledgermq_broker.broker import Broker
from ledgermq_broker.kafka.brokers import Brokers, host_and_port
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.tls import Certificates
from ledgermq_broker.settings.brokers import BrokerSettings

try:
    from ledgermq_broker.kafka.wire.batches.compiled import check_compiled
except ImportError as missing:
    raise InvalidConfig(
        f"kafka_port is set, but {missing.name or 'a package'} is not installed: pip install 'ledgermq[kafka]'"
    ) from missing

from ledgermq_broker.kafka.listener import KafkaListener
from ledgermq_broker.kafka.parts import Parts


class KafkaPort:
    """The port of one broker. `address`: where clients reach it."""

    def __init__(self, listener: KafkaListener, address: str) -> None:
        self.address = address
        self._listener = listener

    @classmethod
    async def open(cls, settings: BrokerSettings, certificates: Certificates | None = None) -> KafkaPort:
        """Bind the port. `certificates`: for TLS, as the port for our own clients; None: plain connections. Raises
        InvalidConfig: it cannot be bound, or what it needs is not installed.
        """
        assert settings.kafka_port is not None
        try:
            check_compiled()
        except RuntimeError as error:
            raise InvalidConfig(str(error)) from error
        asks_clients = settings.tls_client_auth == "required"
        tls = None if certificates is None else certificates.http_context(asks_clients=asks_clients)
        listener = KafkaListener(settings.kafka_connections_max, tls)
        port = await listener.listen(settings.kafka_host, settings.kafka_port)
        address = settings.kafka_advertised_address or _address(settings.kafka_host, port)
        try:
            host_and_port(address)
        except ValueError as error:
            await listener.stop()
            raise InvalidConfig(f"kafka_advertised_address: {error}") from error
        return cls(listener, address)

    async def serve(self, broker: Broker, settings: BrokerSettings, meter: CallMeter, connections: Connections) -> None:
        brokers = Brokers(
            broker.membership,
            broker.directory,
            broker.cluster_id,
            lambda: broker.metadata.catalog.offset,
            broker.calls,
        )
        broker.alarms.add(lambda: _out_of_reach(brokers))
        await self._listener.serve(
            Parts(
                broker.door,
                brokers,
                broker.context.sources,
                asyncio.to_thread,
                lambda: settings.produce_memory_bytes_max,
                lambda: broker.settings,
                meter,
                connections,
            )
        )

    async def stop(self) -> None:
        await self._listener.stop()


def _address(host: str, port: int) -> str:
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _out_of_reach(brokers: Brokers) -> list[str]:
    found = brokers.unreachable()
    if not found:
        return []
    return [
        f"clients of the Kafka protocol do not reach the partitions of {', '.join(found)}: set kafka_port there, too"
    ]
