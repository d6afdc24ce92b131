"""Open the port for clients of the Kafka protocol, as the settings of a broker say."""

from __future__ import annotations

import asyncio
import socket

from ledgermq.errors import InvalidConfig
from ledgermq_broker.broker import Broker
from ledgermq_broker.kafka.brokers import Brokers, host_and_port
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.settings.processes import BrokerSettings, is_local

try:
    from ledgermq_broker.kafka.wire.batches.compiled import check_compiled
except ImportError as missing:
    raise InvalidConfig(
        f"kafka_port is set, but {missing.name or 'a package'} is not installed: pip install 'ledgermq[kafka]'"
    ) from missing

from ledgermq_broker.kafka.connection import Parts
from ledgermq_broker.kafka.listener import KafkaListener


class KafkaPort:
    """The port of one broker. `address`: where clients reach it."""

    def __init__(self, listener: KafkaListener, address: str) -> None:
        self.address = address
        self._listener = listener

    @classmethod
    async def open(cls, settings: BrokerSettings) -> KafkaPort:
        """Bind the port. Raises InvalidConfig: it cannot be bound, what it needs is not installed, or it would let
        callers in whom the other port refuses.
        """
        assert settings.kafka_port is not None
        try:
            check_compiled()
        except RuntimeError as error:
            raise InvalidConfig(str(error)) from error
        if settings.tls_cert_file is not None and not is_local(settings.kafka_host):
            raise InvalidConfig(
                f"the Kafka port has no TLS yet, and kafka_host = {settings.kafka_host} would open it to other"
                " machines, though tls_cert_file is set: take kafka_port away, or let it listen at 127.0.0.1"
            )
        if settings.tls_client_auth == "required":
            raise InvalidConfig(
                "the Kafka port cannot ask for certificates yet, which tls_client_auth = required wants of every"
                " client: take kafka_port away"
            )
        listener = KafkaListener(settings.kafka_connections_max)
        port = await listener.listen(settings.kafka_host, settings.kafka_port)
        address = settings.kafka_advertised_address or _address(settings.kafka_host, port)
        try:
            host_and_port(address)
        except ValueError as error:
            await listener.stop()
            raise InvalidConfig(f"kafka_advertised_address: {error}") from error
        return cls(listener, address)

    async def serve(self, broker: Broker, settings: BrokerSettings, meter: CallMeter) -> None:
        brokers = Brokers(broker.membership, broker.directory, broker.cluster_id)
        broker.alarms.add(lambda: _out_of_reach(brokers))
        await self._listener.serve(
            Parts(
                broker.door,
                brokers,
                broker.context.sources,
                asyncio.to_thread,
                lambda: settings.produce_memory_bytes_max,
                meter,
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
