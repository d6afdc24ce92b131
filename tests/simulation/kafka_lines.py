"""Connections of simulated Kafka clients: bytes that cross the simulated network to the connection code of the
listener itself.

A line carries what is sent in its order, breaks as a whole, and ends with the process at either end. What was on
the way when a client closed its line may still arrive, as from a kernel's memory, if the line is one that `outlives`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ledgermq.buffers import Buffer
from ledgermq.errors import Unavailable
from ledgermq_broker.broker import Broker
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.connection import Connection
from ledgermq_broker.kafka.parts import Parts
from ledgermq_broker.kafka.wire.frames import FrameBuffer, read_response, request_frame
from ledgermq_broker.kafka.wire.messages import Api, read_whole, written
from ledgermq_ledger.blocking import run_inline
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.world import World

Bytes = asyncio.Queue[bytes | None]
"""None: nothing more comes."""


class LineBroke(Exception):
    """Nothing more comes. What was sent may have arrived."""


def kafka_address(broker: str) -> str:
    return f"{broker}:9092"


class Ports:
    """Where brokers listen for clients of the Kafka protocol. `brokers`: the incarnations at work now, by name."""

    def __init__(self, world: World, network: Network, brokers: Mapping[str, ClusterBroker]) -> None:
        self.world, self.network = world, network
        self._brokers = brokers
        self._parts: dict[str, tuple[Broker, Parts]] = {}
        network.kafka_address = kafka_address

    def at(self, name: str) -> tuple[Process, Parts]:
        """Return the process that listens there now, and its parts. Raises Unavailable."""
        served = self._brokers.get(name)
        if served is None or served.broker is None or not served.process.alive:
            raise Unavailable(f"{name} refuses the connection")
        known = self._parts.get(name)
        if known is None or known[0] is not served.broker:
            known = self._parts[name] = served.broker, _parts_of(served.broker)
        return served.process, known[1]


def _parts_of(broker: Broker) -> Parts:
    return Parts(
        broker.door,
        Brokers(
            broker.membership,
            broker.directory,
            broker.cluster_id,
            lambda: broker.metadata.catalog.offset,
            broker.calls,
        ),
        broker.context.sources,
        run_inline,
        lambda: broker.settings.produce_memory_bytes_max,
        lambda: broker.settings,
    )


class KafkaLine:
    """One connection of a client's process to a broker."""

    def __init__(self, ports: Ports, who: str, process: Process, address: str, *, outlives: bool) -> None:
        self.address = address
        self.is_over = False
        self._ports, self._who, self._process = ports, who, process
        self._outlives = outlives
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._up: Bytes = asyncio.Queue()
        self._inbox: Bytes = asyncio.Queue()
        self._down: Bytes = asyncio.Queue()
        loop = ports.world.loop
        process.died.add_done_callback(lambda _: self._end(), context=loop.world)
        self._way = loop.in_world(self._carry())
        self._taking = asyncio.create_task(self._take())

    def send(self, api: Api, version: int, request: Any) -> asyncio.Future[memoryview]:
        """Send a request; the future gets the frame of its answer. Raises LineBroke."""
        if self.is_over:
            raise LineBroke
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._up.put_nowait(request_frame(api, version, number, self._who, written(request, version)))
        return waiting

    async def answer(self, api: Api, version: int, waiting: asyncio.Future[memoryview], timeout_s: float) -> Any:
        """Return an answer. Raises LineBroke, also if it does not come in time: then the line is closed."""
        try:
            async with asyncio.timeout(timeout_s):
                frame = await waiting
        except TimeoutError:
            self._ports.world.coverage.saw("a Kafka client waited for too long")
            self.close()
            raise LineBroke from None
        _, reader = read_response(api, version, frame)
        return read_whole(api.response, reader, version)

    def close(self) -> None:
        self._end()
        self._taking.cancel()

    def _end(self) -> None:
        """End it at this side: its process has closed it, or died."""
        if self.is_over:
            return
        self.is_over = True
        if not self._outlives:
            self._way.cancel()
            while not self._inbox.empty():
                self._inbox.get_nowait()
            self._inbox.put_nowait(None)
        self._up.put_nowait(None)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(LineBroke())
                waiting.exception()  # it may be that nobody waits any more
        self._waiting.clear()

    async def _carry(self) -> None:
        try:
            await self._ports.network.travel(self._who, self.address)
            process, parts = self._ports.at(self.address)
            process.died.add_done_callback(lambda _: self._down.put_nowait(None))
            process.spawn(_serve(parts, f"kafka:{self._who}:1", self._inbox, self._down))
            while (data := await self._up.get()) is not None:
                await self._ports.network.travel(self._who, self.address)
                self._inbox.put_nowait(data)
        except Unavailable:
            self._down.put_nowait(None)
        finally:
            self._inbox.put_nowait(None)

    async def _take(self) -> None:
        answers = FrameBuffer()
        try:
            while (data := await self._down.get()) is not None:
                await self._ports.network.travel(self.address, self._who)
                for frame in answers.feed(data):
                    waiting = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(frame)
        except Unavailable:
            pass
        self._end()


async def _serve(parts: Parts, peer: str, inbox: Bytes, down: Bytes) -> None:
    """In the broker's process: one connection, as the listener serves it."""

    async def send(pieces: Sequence[Buffer]) -> None:
        down.put_nowait(b"".join(pieces))

    connection = Connection(parts, peer, send, lambda: down.put_nowait(None))
    frames = FrameBuffer()
    run = asyncio.create_task(connection.run())
    run.add_done_callback(lambda _: down.put_nowait(None))
    try:
        while (data := await inbox.get()) is not None and not run.done():
            for frame in frames.feed(data):
                connection.received(frame)
    finally:
        run.cancel()
        await asyncio.wait([run])
    if not run.cancelled() and (error := run.exception()) is not None:
        raise error
