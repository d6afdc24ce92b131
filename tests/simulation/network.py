"""The simulated network: connections between processes that carry bytes, take time, break, and are
cut.

A call runs in the process that it is made to, so a paused broker answers no call and a dead one
breaks every line to it. Requests and answers cross as the bytes that gRPC would carry, errors as
the published ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ledgermq.errors import DeadlineExceeded, LedgerMQError, Unavailable
from ledgermq.protocol.api import BrokerApi, Connection, Connector
from ledgermq.protocol.methods import Calls, Kind, Method
from ledgermq.protocol.status import error_from_proto, error_to_proto
from ledgermq_broker.access.door import Admitted, Door
from ledgermq_broker.broker import Broker
from ledgermq_broker.bundle.loads import set_rack
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from tests.simulation.loop import Process
from tests.simulation.world import World, failed_assertions

T = TypeVar("T")
FRAMES_ON_THE_WAY = 64
_END = object()


class Admitting(Protocol):
    """The part of a `Door` that is used here."""

    async def admit(self, credential: str) -> Admitted: ...


@dataclass(frozen=True, slots=True)
class Host:
    """`door`: admits callers; None: every caller may do everything."""

    process: Process
    service: BrokerApi
    door: Admitting | None = None

    async def api(self, credential: str) -> BrokerApi:
        """The API for a caller. Raises Unauthorized, Unavailable."""
        return self.service if self.door is None else (await self.door.admit(credential)).api


class Network:
    """Who listens where. `cuts`: pairs of names between which nothing passes at present."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}
        self.cuts: set[frozenset[str]] = set()
        self.resets = 0.0
        """Share of messages at which the line breaks."""
        self._mended = asyncio.Event()
        self.on_call: Callable[[str, Method, Any], Callable[[Any], None]] = lambda address, method, request: _ignore
        """Called where a request arrives; it returns what is called with the answer, or the error."""
        self.on_start: Callable[[Broker], None] = lambda broker: None
        """Called with each broker that has started."""
        self.meters: Callable[[str], Sequence[StoreMeter]] = lambda broker: ()
        """What counts the requests to the store of a broker that is about to start, by its name."""
        self.kafka_address: Callable[[str], str] = lambda broker: ""
        """Where clients of the Kafka protocol reach a broker, by its name; "": nowhere."""
        self.rack_of: Callable[[str], str] = lambda who: ""
        """In which rack a broker or a program runs, by its name; "": it has said none."""
        self.credential_of: Callable[[str], str] | None = None
        """What the calls of a caller carry, by its name; None: brokers serve everybody, without a door."""

    def listen(self, address: str, process: Process, service: BrokerApi, door: Door) -> None:
        self.hosts[address] = Host(process, service, self.guarding(address, door))

    def guarding(self, address: str, door: Door) -> Admitting | None:
        """What admits callers at an address."""
        return None if self.credential_of is None else door

    def connector(self, who: str, request_timeout_s: float) -> Connector:
        return _Connector(self, who, request_timeout_s)

    def at(self, address: str) -> Host:
        host = self.hosts.get(address)
        if host is None or not host.process.alive:
            raise Unavailable(f"{address} refuses the connection")
        return host

    def cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))

    def mend(self, one: str, other: str) -> None:
        self.cuts.discard(frozenset((one, other)))
        self._mended.set()
        self._mended = asyncio.Event()

    async def travel(self, one: str, other: str) -> None:
        """One message's way. Raises Unavailable where the line breaks under it."""
        await self.world.delay()
        while frozenset((one, other)) in self.cuts:
            await self._mended.wait()
        if self.resets and self.world.random.random() < self.resets:
            self.world.coverage.saw("network: line broken")
            raise Unavailable(f"the line from {one} to {other} broke")


class _Connector(Connector):
    def __init__(
        self, network: Network, who: str, request_timeout_s: float, credential: Callable[[str], str] | None = None
    ) -> None:
        self._network = network
        self._who = who
        self._timeout_s = request_timeout_s
        self._credential = credential

    def connect(self, address: str) -> Connection:
        return Line(self._network, self._who, address, self._timeout_s, self._credential)

    def proving(self, credential: Callable[[str], str]) -> Connector:
        return _Connector(self._network, self._who, self._timeout_s, credential)


class Line(Calls, Connection):
    """One end's connection to an address; it finds the process that listens there now, as a gRPC
    channel does.
    """

    def __init__(
        self,
        network: Network,
        who: str,
        address: str,
        timeout_s: float,
        credential: Callable[[str], str] | None = None,
    ) -> None:
        self.address = address
        self._network = network
        self._who = who
        self._timeout_s = timeout_s
        self._proof = credential

    def as_caller(self, credential: str) -> Connection:
        return Line(self._network, self._who, self.address, self._timeout_s, lambda address: credential)

    def _credential(self) -> str:
        """What a call that begins now carries."""
        if self._network.credential_of is None:
            return ""
        return self._network.credential_of(self._who) if self._proof is None else self._proof(self.address)

    async def ask(self, method: Method, request: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s + method.wait_s(request)):
                return await self._exchange(method, method.encode_request(request))
        except TimeoutError:
            raise DeadlineExceeded(f"{self.address} did not answer in time") from None

    async def _exchange(self, method: Method, request: bytes) -> Any:
        credential = self._credential()
        await self._travel()
        host = self._network.at(self.address)
        arrived = method.decode_request(request)
        answered = self._network.on_call(self.address, method, arrived)
        task = host.process.spawn(self._served(lambda: self._call(host, credential, method, arrived), answered))
        try:
            await asyncio.wait({task, host.process.died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            raise Unavailable(f"{self.address} died")
        answer = method.encode_response(task.result())
        await self._travel()
        return method.decode_response(answer)

    async def _call(self, host: Host, credential: str, method: Method, arrived: Any) -> Any:
        return await getattr(await host.api(credential), method.attribute)(arrived)

    async def _travel(self) -> None:
        await self._network.travel(self._who, self.address)

    async def _served(self, work: Callable[[], Awaitable[T]], answered: Callable[[Any], None]) -> T:
        """In the callee: errors leave it as the published ones, as over gRPC."""
        self._say_rack()
        try:
            answer = await work()
        except Exception as error:
            answered(error)
            raise self._published(error) from error
        answered(answer)
        return answer

    def _published(self, error: Exception) -> LedgerMQError:
        if isinstance(error, LedgerMQError):
            return error_from_proto(error_to_proto(error))
        self._network.world.violations += failed_assertions(error)
        return LedgerMQError(f"{self.address} failed: {error!r}")

    async def _stream(self, method: Method, start: Callable[[BrokerApi], AsyncIterator[Any]]) -> AsyncIterator[Any]:
        """Responses of a stream that `start` opens in the callee."""
        credential = self._credential()
        await self._travel()
        host = self._network.at(self.address)
        down: asyncio.Queue[Any] = asyncio.Queue(FRAMES_ON_THE_WAY)
        call = host.process.spawn(self._serve_stream(method, self._opened(host, credential, start), down))
        try:
            while True:
                item = await self._next(down, host)
                await self._travel()
                if item is _END:
                    return
                if isinstance(item, LedgerMQError):
                    raise item
                yield method.decode_response(item)
        finally:
            call.cancel()

    def _opened(
        self, host: Host, credential: str, start: Callable[[BrokerApi], AsyncIterator[Any]]
    ) -> AsyncIterator[Any]:
        return start(host.service) if host.door is None else _admitted(host, credential, start)

    async def _next(self, down: asyncio.Queue[Any], host: Host) -> Any:
        if not down.empty():
            return down.get_nowait()
        getting = asyncio.create_task(down.get())
        try:
            await asyncio.wait({getting, host.process.died}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                raise Unavailable(f"{self.address} died")
            return getting.result()
        finally:
            getting.cancel()

    def _say_rack(self) -> None:
        """Say to the callee where the caller runs, as metadata do; brokers among themselves say nothing."""
        set_rack("" if self._who in self._network.hosts else self._network.rack_of(self._who))

    async def _serve_stream(self, method: Method, responses: AsyncIterator[Any], down: asyncio.Queue[Any]) -> None:
        self._say_rack()
        try:
            async with aclosing(responses) as found:  # type: ignore[type-var]
                async for response in found:
                    await down.put(method.encode_response(response))
            await down.put(_END)
        except Exception as error:
            await down.put(self._published(error))

    def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        if method.kind is Kind.BIDI_STREAM:
            return self._both_ways(method, requests)
        data = method.encode_request(requests)
        return self._stream(method, lambda api: getattr(api, method.attribute)(method.decode_request(data)))

    async def _both_ways(self, method: Method, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        up: asyncio.Queue[Any] = asyncio.Queue(FRAMES_ON_THE_WAY)
        pump = asyncio.create_task(self._pump(method, requests, up))
        responses = self._stream(method, lambda api: getattr(api, method.attribute)(_received(method, up)))
        try:
            async with aclosing(responses) as found:  # type: ignore[type-var]
                async for response in found:
                    yield response
        finally:
            pump.cancel()
            await asyncio.wait({pump})

    async def _pump(self, method: Method, requests: AsyncIterator[Any], up: asyncio.Queue[Any]) -> None:
        async for request in requests:
            data = method.encode_request(request)
            await self._travel_or_stall()
            await up.put(data)
        await up.put(_END)

    async def _travel_or_stall(self) -> None:
        """What goes up a stream whose line broke arrives nowhere; the way down tells of it."""
        try:
            await self._travel()
        except Unavailable:
            await asyncio.get_running_loop().create_future()

    def credential(self) -> str:
        return ""

    async def wait_lost(self) -> bool:
        try:
            await self._travel()
            host = self._network.at(self.address)
        except Unavailable:
            return self.address not in self._network.hosts or not self._network.hosts[self.address].process.alive
        await asyncio.shield(host.process.died)
        return True

    async def close(self) -> None:
        return None


async def _admitted(
    host: Host, credential: str, start: Callable[[BrokerApi], AsyncIterator[Any]]
) -> AsyncIterator[Any]:
    async with aclosing(start(await host.api(credential))) as responses:  # type: ignore[type-var]
        async for response in responses:
            yield response


def _ignore(answer: Any) -> None:
    return None


async def _received(method: Method, up: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while (data := await up.get()) is not _END:
        yield method.decode_request(data)
