"""Serve gRPC's standard services beside the broker's: health and server reflection.

Health answers everybody, so it has bounds that take nothing from other calls: a request is not
received at all, because every service of a broker has the same state, and streams are few for a
connection and for the broker. Reflection is for admitted callers, as all other methods.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ledgermq.errors import ResourceExhausted
from ledgermq.protocol.methods import SERVICE
from ledgermq.protocol.status import abort
from ledgermq_broker.ports.metered_call import Context

WATCHES_MAX = 200
CONNECTION_WATCHES_MAX = 5


class HealthCalls:
    """`grpc.health.v1.Health` for all callers; all services have one state."""

    def __init__(self) -> None:
        self._status = health_pb2.HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()
        self._watches: Counter[str] = Counter()

    def set(self, *, serving: bool) -> None:
        kind = health_pb2.HealthCheckResponse
        self._status = kind.SERVING if serving else kind.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        handlers = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers)

    async def _check(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        return self._answer()

    async def _watch(self, requests: AsyncIterator[bytes], context: Context) -> None:
        peer = context.peer()
        if self._watches[peer] >= CONNECTION_WATCHES_MAX or self._watches.total() >= WATCHES_MAX:
            await abort(
                context,
                ResourceExhausted(
                    f"a connection watches health {CONNECTION_WATCHES_MAX} times at most, and all {WATCHES_MAX} times"
                ),
            )
        self._watches[peer] += 1
        try:
            while True:
                changed = self._changed
                await context.write(self._answer())
                await changed.wait()
        finally:
            self._watches[peer] -= 1
            if not self._watches[peer]:
                del self._watches[peer]

    def _answer(self) -> bytes:
        data: bytes = health_pb2.HealthCheckResponse(status=self._status).SerializeToString()
        return data


def reflection_handler(admit: Callable[[Context], Awaitable[Callable[[], None]]]) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handler of server reflection. `admit(context)` ends the call of a caller that may not use it;
    otherwise it returns what ends the count of the call.
    """
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # missing in the stubs

    async def info(requests: AsyncIterator[bytes], context: Context) -> None:
        end = await admit(context)
        try:
            decoded = (reflection_pb2.ServerReflectionRequest.FromString(data) async for data in requests)
            async for answer in servicer.ServerReflectionInfo(decoded, context):
                await context.write(answer.SerializeToString())
        finally:
            end()

    handlers = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)}
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, handlers)
