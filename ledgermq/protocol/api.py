"""The interface between clients and brokers: a broker's calls, independent of how their bytes
travel.

A broker's service object implements `BrokerApi`; so does a gRPC connection to it
(`ledgermq.client.connection.grpc_connection`). An embedded or simulated cluster passes the service object
itself to the client. Produce and fetch carry encoded frames (`ledgermq.protocol.frames`), so that
payload bytes are never copied through protobuf objects; the other calls carry the published
messages. Errors are raised as `ledgermq.errors`, except the per-batch and per-partition ones that a
response holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ledgermq.protocol.calls import StreamApi, UnaryApi


class BrokerApi(UnaryApi, StreamApi, Protocol):
    """All calls, typed in `calls/__init__.pyi`, which is generated from the .proto."""


class Connection(BrokerApi, Protocol):
    """A BrokerApi at an address."""

    address: str

    def credential(self) -> str:
        """Return what a call that begins now carries as proof of its caller. A stream keeps the one with which it
        began, so it must end when this changes: the program may be another principal now.
        """
        return ""

    def as_caller(self, credential: str) -> Connection:
        """Return this connection with another credential, for all its calls and streams; itself, if its calls carry
        none. Closing what is returned closes nothing.
        """
        return self

    async def wait_lost(self) -> bool:
        """Return when the peer is found to be gone: True if it refuses connections, False if only
        the line was lost.
        """
        ...

    async def close(self) -> None: ...


class Connector(Protocol):
    """Opens connections: over gRPC between processes, as direct calls in embedded clusters and
    simulation.
    """

    def connect(self, address: str) -> Connection: ...

    def proving(self, credential: Callable[[str], str]) -> Connector:
        """Return a connector whose calls to an address carry `credential(address)`; this one, if its
        calls carry none.
        """
        return self
