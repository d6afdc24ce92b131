"""Tell operators what this broker is and has, and who is connected to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.admission.connections import ConnectedCaller, Connections
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.sources import STARS, is_secret, shown

LIMIT = 1_000
"""Connections of an answer, where the request names no number, and at most."""


class ProcessNumbers:
    """What the process has, by names that end in their unit. This default knows nothing."""

    def read(self) -> Mapping[str, float]:
        return {}


class OperatorPath:
    def __init__(
        self,
        version: str,
        membership: Membership,
        directory: Directory,
        ownership: Ownership,
        context: BundleContext,
        settings: Callable[[], BrokerSettings],
        process: ProcessNumbers,
        connections: Connections,
    ) -> None:
        self._version = version
        self._started_ms = context.sources.now_ms()
        self._membership = membership
        self._directory = directory
        self._ownership = ownership
        self._context = context
        self._settings = settings
        self._process = process
        self._connections = connections

    async def describe_broker(self, request: pb.DescribeBrokerRequest) -> pb.DescribeBrokerResponse:
        me = self._membership.me
        owned = sorted(self._ownership.opened)
        numbers = {
            "load_bytes_per_s": float(sum(self._directory.loads.get(bundle, 0) for bundle in owned)),
            "produce_memory_bytes": float(self._context.produce_memory.taken),
            "produce_memory_max_bytes": float(self._context.produce_memory.bytes_max),
            "connected_callers": float(len(self._connections)),
            **self._process.read(),
        }
        return pb.DescribeBrokerResponse(
            id=me.broker,
            address=me.address,
            version=self._version,
            started_ms=self._started_ms,
            draining=self._membership.is_draining,
            bundles=owned,
            numbers=numbers,
            settings=shown_settings(self._settings()),
        )

    async def list_connections(self, request: pb.ListConnectionsRequest) -> pb.ListConnectionsResponse:
        """Return who is connected. Raises InvalidRequest."""
        after = request.after or "0"
        if not (after.isascii() and after.isdecimal() and len(after) < 20):
            raise InvalidRequest(f"{after[:40]!r} is no id of a connection")
        found, more = self._connections.page(int(after), min(request.limit or LIMIT, LIMIT))
        return pb.ListConnectionsResponse(connections=[_info(each) for each in found], more=more)


def _info(found: ConnectedCaller) -> pb.ConnectionInfo:
    return pb.ConnectionInfo(
        id=str(found.number),
        address=found.address,
        principal=found.principal,
        client_id=found.client_id,
        client=found.client,
        since_ms=found.since_ms,
        last_ms=found.last_ms,
        calls=found.calls,
        calls_now=found.calls_now,
        produces=sorted(found.produces),
        reads=sorted(found.reads),
    )


def shown_settings(settings: BrokerSettings) -> dict[str, str]:
    """Return the settings in force as texts, secrets as stars."""
    kind = type(settings)
    return {
        name: STARS if is_secret(kind, name) else str(shown(getattr(settings, name)))
        for name in sorted(kind.model_fields)
        if getattr(settings, name) is not None
    }
