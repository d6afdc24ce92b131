"""The port between a client and a broker of this process, which plays the planned troubles and shows each call to the
judge.

Brokers reach one another without it, so all that comes here is the client's. A stream of produce requests is served
request by request, in its order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio

from ledgermq.errors import LedgerMQError, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol import status
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame, Frame
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import METHODS, SERVICE, Kind, Method
from ledgermq.runtime.tasks import end
from ledgermq_tools.conformance.brokers.faults import (
    Damaged,
    Elsewhere,
    Fault,
    Late,
    LostAnswer,
    LostRequest,
    Plan,
    Refused,
    Stale,
    Twice,
)
from ledgermq_tools.conformance.judging.judge import Call, Judge

HOST = "127.0.0.1"
WAITING_MAX = 100
"""Requests of a stream that may wait to be served: it is read on meanwhile, so that the judge sees them come."""

JUDGED_STREAMS = ("Produce", "Stage")
"""Streams of requests that meet troubles, and are served one after the other."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class Lost(Exception):
    """The call ends as if the line broke, with this status."""

    def __init__(self, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(status.name)
        self.status = status


@dataclass(slots=True)
class Watch:
    """What goes on at the ports now: the troubles of a check, and its judge."""

    plan: Plan
    judge: Judge


class Front:
    """`addresses`: of all fronts. `watch` is replaced from check to check."""

    def __init__(self, addresses: list[str], watch: Watch) -> None:
        self.address = ""
        self.watch = watch
        self._addresses = addresses
        self._api: BrokerApi | None = None
        self._server = grpc.aio.server(options=GRPC_OPTIONS)

    async def listen(self) -> None:
        """Open a free port; calls fail until `serve`."""
        handlers = {method.name: self._handler(method) for method in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.address = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
        await self._server.start()
        self._addresses.append(self.address)

    def serve(self, api: BrokerApi) -> None:
        self._api = api

    async def stop(self) -> None:
        """Close the port at once, as the end of a process does."""
        await self._server.stop(0)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        if method.kind is Kind.UNARY:
            return grpc.unary_unary_rpc_method_handler(partial(self._unary, method))
        if method.kind is Kind.SERVER_STREAM:
            return grpc.unary_stream_rpc_method_handler(partial(self._server_stream, method))
        if method.name in JUDGED_STREAMS:
            return grpc.stream_stream_rpc_method_handler(partial(self._judged_stream, method))
        return grpc.stream_stream_rpc_method_handler(partial(self._other_stream, method))

    async def _unary(self, method: Method, data: bytes, context: Context) -> bytes:
        try:
            watch, fault, call = self._begin(method, data)
            return method.encode_response(await self._served(method, data, watch, fault, call))
        except (Lost, LedgerMQError) as error:
            return await _refuse(context, error)

    async def _server_stream(self, method: Method, data: bytes, context: Context) -> None:
        try:
            watch, fault, call = self._begin(method, data)
            try:
                if isinstance(fault, LostRequest):
                    raise Lost(fault.status)
                if isinstance(fault, Refused | Elsewhere):
                    raise self._error_of(fault)
                async with aclosing(getattr(self._found(), method.attribute)(method.decode_request(data))) as answers:
                    async for answer in answers:
                        fault = await self._write(method, answer, context, watch, fault, call)
            except (Lost, asyncio.CancelledError):
                watch.judge.lost(call)
                raise
            except LedgerMQError as error:
                planned = isinstance(fault, Refused | Elsewhere)
                watch.judge.failed(call, status.error_to_proto(error), _now_s(), planned=planned)
                raise
        except (Lost, LedgerMQError) as error:
            await _refuse(context, error)

    async def _write(
        self, method: Method, answer: Any, context: Context, watch: Watch, fault: Fault | None, call: Call
    ) -> Fault | None:
        """Write an answer of a stream; return the trouble that is left for the next one."""
        if isinstance(fault, LostAnswer):
            raise Lost(fault.status)
        if isinstance(fault, Late):
            await asyncio.sleep(fault.seconds)
            fault = None
        shown = _damaged(answer, fault.text) if isinstance(fault, Damaged) else answer
        watch.judge.answered(call, answer, _now_s())
        await context.write(method.encode_response(shown))
        return fault if shown is answer else None

    async def _judged_stream(self, method: Method, requests: AsyncIterator[bytes], context: Context) -> None:
        waiting: asyncio.Queue[tuple[bytes, Watch, Fault | None, Call] | None] = asyncio.Queue(WAITING_MAX)
        reading = asyncio.create_task(self._read(method, requests, waiting), name="requests of a stream")
        try:
            while (found := await waiting.get()) is not None:
                data, watch, fault, call = found
                await context.write(method.encode_response(await self._served(method, data, watch, fault, call)))
        except (Lost, LedgerMQError) as error:
            await _refuse(context, error)
        finally:
            await end(reading)
            while not waiting.empty():
                if (unserved := waiting.get_nowait()) is not None:
                    unserved[1].judge.lost(unserved[3])

    async def _read(
        self,
        method: Method,
        requests: AsyncIterator[bytes],
        waiting: asyncio.Queue[tuple[bytes, Watch, Fault | None, Call] | None],
    ) -> None:
        async for data in requests:
            await waiting.put((data, *self._begin(method, data)))
        await waiting.put(None)

    async def _other_stream(self, method: Method, requests: AsyncIterator[bytes], context: Context) -> None:
        async def decoded() -> AsyncIterator[Any]:
            async for data in requests:
                yield method.decode_request(data)

        try:
            async with aclosing(getattr(self._found(), method.attribute)(decoded())) as answers:
                async for answer in answers:
                    await context.write(method.encode_response(answer))
        except LedgerMQError as error:
            await _refuse(context, error)

    def _begin(self, method: Method, data: bytes) -> tuple[Watch, Fault | None, Call]:
        """Show a request to the judge, and return what it meets. Raises CorruptFrame, InvalidRequest."""
        watch = self.watch
        try:
            request = method.decode_request(data)
        except LedgerMQError as error:
            watch.judge.unreadable(method.name, error.message)
            raise
        call = watch.judge.asked(method.name, self.address, request, _now_s())
        return watch, watch.plan.next(method.name), call

    async def _served(self, method: Method, data: bytes, watch: Watch, fault: Fault | None, call: Call) -> Any:
        """Return the answer of the broker, or of the plan. Raises Lost, LedgerMQError."""
        try:
            if isinstance(fault, LostRequest):
                raise Lost(fault.status)
            if isinstance(fault, Refused | Elsewhere):
                return self._refused(call, self._error_of(fault), watch)
            answer = await self._ask(method, data)
            if isinstance(fault, Twice):
                answer = await self._ask(method, data)
            if isinstance(fault, LostAnswer):
                raise Lost(fault.status)
            if isinstance(fault, Late):
                await asyncio.sleep(fault.seconds)
        except (Lost, asyncio.CancelledError):
            watch.judge.lost(call)
            raise
        except LedgerMQError as error:
            planned = isinstance(fault, Refused | Elsewhere)
            watch.judge.failed(call, status.error_to_proto(error), _now_s(), planned=planned)
            raise
        watch.judge.answered(call, answer, _now_s())
        if isinstance(fault, Stale):
            self._mislead(answer)
        if isinstance(fault, Damaged):
            shown = _damaged(answer, fault.text)
            if shown is answer:
                watch.plan.put_back(method.name, fault)
            return shown
        return answer

    def _error_of(self, fault: Refused | Elsewhere) -> LedgerMQError:
        if isinstance(fault, Refused):
            return fault.error
        others = [address for address in self._addresses if address != self.address]
        error = NotOwner("another broker owns it", owner=others[-1] if others else self.address)
        error.not_stored = True
        return error

    def _refused(self, call: Call, error: LedgerMQError, watch: Watch) -> Any:
        """Return an answer with the error for each batch. Raises the error, if the call is not about batches."""
        sent = status.error_to_proto(error)
        if call.method == "ProduceOnce":
            answer: Any = pb.ProduceResponse(results=[pb.ProduceResult(error=sent) for _ in call.batches])
        elif call.method == "Stage":
            answer = pb.StageResponse(results=[pb.StageResult(error=sent) for _ in call.batches])
        else:
            raise error
        watch.judge.answered(call, answer, _now_s(), planned=True)
        return answer

    async def _ask(self, method: Method, data: bytes) -> Any:
        """Ask the broker; requests of a stream are served as single ones. Raises Lost if the broker ends the stream."""
        request = method.decode_request(data)
        if method.name == "Stage":
            async with aclosing(getattr(self._found(), method.attribute)(_only(request))) as answers:
                async for answer in answers:
                    return answer
            raise Lost
        attribute = "produce_once" if method.name == "Produce" else method.attribute
        return await getattr(self._found(), attribute)(request)

    def _found(self) -> BrokerApi:
        if self._api is None:
            raise Unavailable("the broker is starting", retry_after_ms=200)
        return self._api

    def _mislead(self, answer: pb.DescribeTopicsResponse) -> None:
        """Name another broker as the owner of each partition."""
        for topic in answer.topics:
            for partition in topic.partitions:
                others = [address for address in self._addresses if address != partition.owner]
                partition.owner = others[0] if others else partition.owner


def _damaged(answer: Any, text: bytes) -> Any:
    """Return the frame with the last byte of the text changed; itself, if the text is not in it."""
    payload = bytearray(b"".join(bytes(piece) for piece in answer.payload) if isinstance(answer, Frame) else b"")
    at = payload.find(text)
    if at < 0:
        return answer
    payload[at + len(text) - 1] ^= 0x01
    frame: FetchFrame = answer
    return replace(frame, payload=[bytes(payload)])


async def _only(request: Any) -> AsyncIterator[Any]:
    yield request


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _refuse(context: Context, error: Lost | LedgerMQError) -> NoReturn:
    if isinstance(error, LedgerMQError):
        await status.abort(context, error)
    await context.abort(error.status, "the connection broke off")
    raise AssertionError("abort() returned")
