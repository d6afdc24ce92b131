"""Calls as a client of some version made them, byte for byte, and their repetition at a broker of
today.

The real SDK talks to a real broker through a proxy that writes down what passes. Repeated one after
the other on a copy of the same root they mean the same: member ids and producer ids are the
client's, epochs and offsets follow from the root.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

import ledgermq
from infra.ports import free_port
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import FETCH, METHODS, PRODUCE, SERVICE, Kind, Method
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.topics.catalog import read_catalog
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.upgrades.delayed import use_delayed
from tests.upgrades.transactions import use_transactions
from tests.worlds.ledgers import ledger_of

METHODS_BY_NAME = {method.name: method for method in METHODS}
FILE = "calls.json"
HEARTBEAT_S = 0.2
PRODUCER_STATES_MAX = 100_000


@dataclass
class Call:
    """`requests` and `answers` as they were on the wire; `code`: of gRPC's status."""

    method: str
    requests: list[bytes] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    code: str = "OK"

    @property
    def of(self) -> Method:
        return METHODS_BY_NAME[self.method]


class Proxy(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Every method as a stream of each: on the wire a unary call is one with one message."""

    def __init__(self, upstream: grpc.aio.Channel) -> None:
        self.calls: list[Call] = []
        self._upstream = upstream

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method
        if not path.startswith(f"/{SERVICE}/"):
            return None

        async def handle(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            call = Call(path.rpartition("/")[2])
            self.calls.append(call)

            async def passing() -> AsyncIterator[bytes]:
                async for data in requests:
                    call.requests.append(data)
                    yield data

            try:
                async for answer in self._upstream.stream_stream(path, bytes, bytes)(passing()):
                    call.answers.append(answer)
                    yield answer
            except grpc.aio.AioRpcError as error:
                call.code = error.code().name
                trailing = tuple((key, value) for key, value in error.trailing_metadata() or ())
                await context.abort(error.code(), error.details() or "", trailing)

        return grpc.stream_stream_rpc_method_handler(handle)


@asynccontextmanager
async def recording(port: int, upstream: str) -> AsyncIterator[list[Call]]:
    """A proxy on the port; the calls that pass."""
    async with grpc.aio.insecure_channel(upstream, options=GRPC_OPTIONS) as channel:
        proxy = Proxy(channel)
        server = grpc.aio.server(options=GRPC_OPTIONS)
        server.add_generic_rpc_handlers((proxy,))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield proxy.calls
        finally:
            await server.stop(0)


async def record_calls(work: Path, root: Path, topic: str, folder: Path) -> None:
    """Let the SDK use everything it has on the root, and save what it said."""
    port = free_port()
    with BrokerProcesses(work, root.as_uri(), QUICK) as brokers:
        inner = free_port()
        brokers.spawn("--advertised-address", f"127.0.0.1:{port}", port=inner)
        async with recording(port, f"127.0.0.1:{inner}") as calls:
            await asyncio.to_thread(brokers.wait_ready, brokers.running[0])
            await wait_settled(root, f"127.0.0.1:{inner}", f"127.0.0.1:{port}")
            await _use_everything(f"127.0.0.1:{port}", topic)
            saved = [call for call in calls if call.code == "OK" and call.answers]
    missing = METHODS_BY_NAME.keys() - {call.method for call in saved}
    assert not missing, f"the recording lacks {missing}"
    save(saved, folder)


async def _use_everything(target: str, topic: str) -> None:
    async with ledgermq.connect(target) as client:
        await client.describe_cluster()
        await client.list_topics()
        await client.create_topic("made", 2, {"retention.ms": 10**12})
        await client.alter_topic("made", partitions=3, settings={"compression.type": "lz4"})
        await client.describe_topic("made")
        async with client.producer() as producer:
            for number in range(4):
                await producer.send(
                    "made",
                    f"sent {number}",
                    key="k",
                    headers={"h": b"1"},
                    tag="t",
                    partition=number % 2,
                    timestamp=number,
                )
        async with client.producer(acks="received") as producer:
            await producer.send("made", "not waited for", partition=2)
        async with client.consumer(topic) as consumer:
            ends = await consumer.end_offsets()
            while consumer.positions() != ends:
                await consumer.fetch(timeout=10)
        await client.list_offsets(topic, "earliest")
        await client.create_topic("moved", 1)
        await use_transactions(client, target, "made", "moved")
        await client.create_topic("later", 1)
        await use_delayed(client, target, "later")
        await client.delete_records("made", {0: 1})
        settings = {"heartbeat_wait_s": HEARTBEAT_S, "commit": "manual"}
        async with client.consumer("made", group="calls", **settings) as member:
            taken = await member.fetch(timeout=10)
            await member.commit(taken)
        await client.groups.list()
        await client.groups.describe("readers")
        await client.groups.reset("calls", await client.groups.plan_reset("calls", "earliest"))
        await client.groups.delete("calls")
    async with RawClient(target) as raw:  # what the SDK leaves to other clients
        await raw.produce("made", 1, b"once")
        await raw.read_all("made", 1)
    async with ledgermq.connect(target) as client:
        await client.delete_topic("made", now=True)


async def wait_settled(root: Path, contact: str, address: str) -> None:
    """Until the only broker, which calls itself `address`, has taken over all that the root speaks
    of, knows the topics, and has freed the names of removed ones: the id of the next topic is then
    the same whenever it is made."""
    async with RawClient(contact) as raw, asyncio.timeout(60):
        while {info.owner for info in (await raw.describe()).bundles} != {address}:
            await asyncio.sleep(0.1)
        await raw.owner("flights", 0)
    async with FileStore(root, Sources()) as store, asyncio.timeout(60):
        while any(
            topic.removed
            for topic in (await read_catalog(ledger_of(store, 0, cluster=ClusterSettings()))).topics_by_name.values()
        ):
            await asyncio.sleep(0.1)


async def repeat(call: Call, channel: grpc.aio.Channel, given: dict[bytes, bytes] | None = None) -> Call:
    """The same requests again; as many answers of a stream as hold what they held then.

    `given`: by the producer id that a coordinator gave to a transactional id then, the one that it
    gives now. Requests name the latter; keep it from call to call.
    """
    given = {} if given is None else given
    done = Call(call.method, [_with_ids(request, given) for request in call.requests])
    try:
        return await _repeated(call, done, channel)
    finally:
        if call.method == "InitTransactions" and done.answers:
            then, now = (call.of.decode_response(answers[0]) for answers in (call.answers, done.answers))
            given[then.producer_id] = now.producer_id


def _with_ids(request: bytes, given: dict[bytes, bytes]) -> bytes:
    """Ids have one length, so the rest of the message stays as it is."""
    for then, now in given.items():
        request = request.replace(then, now)
    return request


async def _repeated(call: Call, done: Call, channel: grpc.aio.Channel) -> Call:
    open_call: Any = channel.stream_stream(call.of.path, bytes, bytes)(_each(done.requests))
    goal = records_in(call)
    async with asyncio.timeout(60):
        async for answer in open_call:
            done.answers.append(answer)
            if call.of.kind is not Kind.UNARY and len(done.answers) >= len(call.answers) and records_in(done) >= goal:
                break
            if call.of is FETCH and records_in(done) >= goal:
                break
    open_call.cancel()
    return done


async def _each(requests: list[bytes]) -> AsyncIterator[bytes]:
    for request in requests:
        yield request


def records_in(call: Call) -> int:
    """Records that a fetch has brought; 0 for all other calls."""
    if not call.method.startswith("Fetch") or call.method == "FetchCommitted":
        return 0
    return sum(
        batch.record_count
        for answer in call.answers
        for part in call.of.decode_response(answer).header.partitions
        for batch in part.batches
    )


def errors_in(call: Call) -> set[str]:
    """Codes of the errors within the answers."""
    found = set()
    for answer in call.answers:
        decoded = call.of.decode_response(answer)
        found |= set(_error_codes(decoded.header if isinstance(decoded, Frame) else decoded))
    return found


def _error_codes(message: Message) -> Iterator[str]:
    if isinstance(message, pb.Error):
        yield message.code
        return
    for kind, value in message.ListFields():
        if kind.message_type is None or kind.message_type.GetOptions().map_entry:
            continue
        for each in [value] if isinstance(value, Message) else value:
            yield from _error_codes(each)


def base_offsets(call: Call) -> list[int]:
    """The answers that a producer received."""
    if call.of.name not in (PRODUCE.name, "ProduceOnce"):
        return []
    return [result.base_offset for answer in call.answers for result in call.of.decode_response(answer).results]


def save(calls: list[Call], folder: Path) -> None:
    def text(value: Any) -> Any:
        return [base64.b64encode(data).decode() for data in value] if isinstance(value, list) else value

    rows = [json.dumps({name: text(value) for name, value in asdict(call).items()}) for call in calls]
    (folder / FILE).write_text("[\n" + ",\n".join(rows) + "\n]\n")


def load(folder: Path) -> list[Call]:
    def data(value: Any) -> Any:
        return [base64.b64decode(text) for text in value] if isinstance(value, list) else value

    return [
        Call(**{name: data(value) for name, value in row.items()}) for row in json.loads((folder / FILE).read_text())
    ]
