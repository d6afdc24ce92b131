"""Complete calls of one principal leave the processor to others. Handlers of the gRPC server are called with calls that
are complete, as gRPC does it; judged by the order in which the service gets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc.aio
import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ProduceFrame
from ledgermq.protocol.methods import FETCH_ONCE, LIST_OFFSETS, PRODUCE, Method
from ledgermq_broker.access.door import Admitted
from ledgermq_broker.access.state.rules import Principal
from ledgermq_broker.ports import grpc_server
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.grpc_server import FREE_PER_S, GrpcServer
from tests.virtual_time import virtual
from tests.waiting import until

FLOOD = 4 * FREE_PER_S


class Refused(Exception):
    """How a call was ended."""


class Call:
    """The context of a call of `who`, as much of it as the server uses."""

    def __init__(self, who: str, host: str = "10.0.0.1", data: bytes = b"") -> None:
        self._who, self._host, self._data = who, host, data
        self.written: list[bytes] = []

    def peer(self) -> str:
        return f"ipv4:{self._host}:1"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", self._who)]

    def peer_identity_key(self) -> None:
        return None

    def add_done_callback(self, _: object) -> None:
        return None

    async def read(self) -> bytes:
        return self._data

    async def write(self, data: bytes) -> None:
        self.written.append(data)

    async def abort(self, code: grpc.StatusCode, details: str, trailing: object = ()) -> None:
        raise Refused(code.name, details, trailing)


class Service:
    """Notes who called, in order. A call takes some turns of the event loop."""

    def __init__(self, begun: list[str], who: str) -> None:
        self._begun, self._who = begun, who

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        self._begun.append(self._who)
        for _ in range(5):
            await asyncio.sleep(0)
        return pb.ListOffsetsResponse()

    async def fetch_once(self, request: pb.FetchRequest) -> Any:
        self._begun.append(f"{self._who} waits")
        await asyncio.sleep(3600)

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for request in requests:
            self._begun.append(self._who)
            yield pb.ProduceResponse(results=[pb.ProduceResult(base_offset=int(b"".join(map(bytes, request.payload))))])


class OpenDoor:
    """Believes each caller."""

    def __init__(self, closed: bool = True) -> None:
        self.begun: list[str] = []
        self.closed = closed

    async def admit(self, credential: str, certified: object = (), client_id: str = "") -> Admitted:
        principal = Principal(credential, is_broker=credential == "broker")
        return Admitted(cast(Any, Service(self.begun, credential)), principal, None)


class World:
    def __init__(self, closed: bool = True) -> None:
        self.door = OpenDoor(closed)
        self.begun = self.door.begun
        self.server = GrpcServer(2000, CallMeter())
        self._tasks: list[asyncio.Task[Any]] = []

    async def serve(self) -> None:
        await self.server.serve(cast(Any, object()), cast(Any, self.door))

    def call(self, who: str, method: Method = LIST_OFFSETS, host: str = "10.0.0.1") -> asyncio.Task[Any]:
        handle = self.server._unary(method)
        task = asyncio.ensure_future(handle(cast(Any, None), cast(Any, Call(who, host))))
        self._tasks.append(task)
        return task

    async def flood(self, host: str = "10.0.0.1") -> None:
        """Begin calls of mallory, of which more wait than may begin at once."""
        for _ in range(FLOOD):
            self.call("mallory", host=host)
        for _ in range(5):
            await asyncio.sleep(0)
        assert self.server._turns.waiting > FLOOD // 2
        self.server._turns._free["victim"] = FREE_PER_S  # it has begun as many as do not wait
        self.server._turns._free["10.0.0.7"] = FREE_PER_S

    async def over(self) -> list[Any]:
        return await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("who", ["victim", "broker"])
@virtual
async def test_a_call_waits_for_one_call_of_each_other_principal(who: str) -> None:
    world = World()
    await world.serve()
    await world.flood()
    called = world.call(who)
    await asyncio.sleep(0)
    before = len(world.begun)
    await called
    assert world.begun.index(who) - before <= (0 if who == "broker" else 2)
    await world.over()
    assert world.begun.count("mallory") == FLOOD, "the flood is served, too"
    assert world.server._turns.waiting == 0


@virtual
async def test_without_rules_hosts_take_turns() -> None:
    world = World(closed=False)
    await world.serve()
    await world.flood(host="10.0.0.66")
    called = world.call("victim", host="10.0.0.7")
    await asyncio.sleep(0)
    before = len(world.begun)
    await called
    assert world.begun.index("victim") - before <= 2
    await world.over()


@virtual
async def test_requests_of_a_stream_keep_their_order_and_wait_for_no_flood() -> None:
    world = World()
    await world.serve()
    await world.flood()

    async def frames() -> AsyncIterator[bytes]:
        for number in range(10):
            header = pb.ProduceHeader(batches=[pb.ProduceBatch(length=1)])
            yield PRODUCE.encode_request(Frame(header, [b"%d" % number]))

    before, context = len(world.begun), Call("victim")
    await world.server._bidi_stream(PRODUCE)(frames(), cast(Any, context))
    answers = [pb.ProduceResponse.FromString(data).results[0].base_offset for data in context.written]
    assert answers == list(range(10))
    last = len(world.begun) - 1 - world.begun[::-1].index("victim")
    assert last - before < FLOOD // 2, "each waits for one call of the flood, not for all"
    await world.over()


@virtual
async def test_calls_that_wait_hold_no_turn() -> None:
    """Hundreds of long polls delay no call, of their own principal neither."""
    world = World()
    await world.serve()
    polls = [world.call("mallory", FETCH_ONCE) for _ in range(FLOOD)]
    await until(lambda: len(world.begun) == FLOOD)
    await asyncio.sleep(2)
    before = asyncio.get_running_loop().time()
    await world.call("mallory")
    assert asyncio.get_running_loop().time() == before
    for poll in polls:
        poll.cancel()
    await world.over()


@virtual
async def test_a_call_that_waits_too_long_is_refused_with_a_hint() -> None:
    world = World()
    await world.serve()
    world.call("other")
    turns = world.server._turns
    turns._let_in = lambda: False  # type: ignore[method-assign]  # the processor never comes to it
    calls = [world.call("mallory") for _ in range(FREE_PER_S + 2)]
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(Refused) as refused:
        await calls[-1]
    assert asyncio.get_running_loop().time() - begun_s == pytest.approx(grpc_server.TURN_S_MAX)
    code, details, trailing = refused.value.args
    assert code == "RESOURCE_EXHAUSTED"
    assert "waited 10 s" in details
    assert "1000" in str(trailing) or "retry" in str(trailing)
    await world.over()
    assert world.begun.count("mallory") < len(calls), "nothing is done for a call that waits"
    assert turns.waiting == 0
