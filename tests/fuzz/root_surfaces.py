"""Any object of a whole root spoiled, and all that looks at roots: `fsck` and `inspect` report it
and never fail; plain damage is found.

input: | number of the object | 1: its bytes were edited, 0: its fields were, under a checksum that
fits | content |
"""

from __future__ import annotations

import asyncio
import io
import random
import struct
from contextlib import redirect_stdout
from functools import cache

import pyarrow as pa
from crc32c import crc32c
from google.protobuf.message import Message

from ledgermq.cli.arguments.options import OutputFormat
from ledgermq.cli.output.report import Report, show
from ledgermq.errors import LedgerMQError
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq_broker.exclusive.state.records import Entry as HolderEntry
from ledgermq_broker.exclusive.state.records import Holder
from ledgermq_broker.exclusive.state.records import encode as encode_holder
from ledgermq_broker.features import check_features
from ledgermq_broker.internal.feature import StoredRoot
from ledgermq_broker.queues.state.records import ChunkEntry, ShareKey, StartEntry
from ledgermq_broker.queues.state.records import encode as encode_share
from ledgermq_broker.timed.state.blocks import Id, Ids, Key, encode_block
from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US
from ledgermq_broker.timed.state.places import Range, RangeId
from ledgermq_broker.timed.state.records import Flushed, FlushedEntry, Piece, RangeEntry, RecallEntry, WatermarkEntry
from ledgermq_broker.timed.state.records import encode as encode_timer
from ledgermq_broker.transactions.state.records import IdEntry, IdValue, ReferencesEntry, ReferencesValue, encode
from ledgermq_broker.transactions.state.types import Kind, Part, Reference, State, Stream, Transaction
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.envelope import ObjectKind, unseal
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.topic import Topic
from ledgermq_tools.ledger.inspect.checkpoint_report import checkpoint_report
from ledgermq_tools.ledger.inspect.cluster_report import cluster_report
from ledgermq_tools.ledger.inspect.findings import Findings
from ledgermq_tools.ledger.inspect.ledger_report import ledger_report, view_ledger
from ledgermq_tools.ledger.inspect.segment_report import segment_report
from ledgermq_tools.ledger.inspect.topics.queues_report import shares_report
from ledgermq_tools.ledger.inspect.topics.timed_report import timers_report
from ledgermq_tools.ledger.inspect.topics.transactions_report import transactions_report
from tests.fuzz.ledger_surfaces import spoil_segment
from tests.fuzz.mutation import mutate_sealed
from tests.fuzz.surface import Surface, Untyped
from tests.property.timer_log import batch_of
from tests.stores.backends import seeded_sources
from tests.worlds.batches import mutate
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, session
from tests.worlds.roots import Root

HEADER = struct.Struct("<BB")
_runner = asyncio.Runner()
_SEALED: tuple[tuple[str, ObjectKind, type[Message]], ...] = (
    ("checkpoints", ObjectKind.CHECKPOINT, fmt.Checkpoint),
    ("compactions", ObjectKind.COMPACTION_PLAN, fmt.CompactionPlan),
    ("files", ObjectKind.FILE_PAGE, fmt.FilePage),
    ("snapshots", ObjectKind.SNAPSHOT, fmt.Snapshot),
)


async def _filled() -> tuple[Root, dict[str, bytes]]:
    """Two topics in Parquet, a tail behind it, a plan that is not finished, an open transaction, timed
    messages in hidden files and in segments, and two brokers.
    """
    sources = seeded_sources()
    root = await Root.open(MemoryStore("root", sources), sources)
    await root.create_topic("flights", 2)
    await root.produce("flights", (0, [b"a"] * 5), (1, [b"b"] * 3))
    hidden = await _hidden_topics(root)
    await _put_block(root, hidden[1], DAY_US)
    await root.compact()
    await root.create_topic("planes")
    await root.produce("flights", (0, [b"c"] * 5))
    await advance_checkpoint(ledger_of(root.store, 1, cluster=root.cluster, sources=sources))
    writer = await root.writer(1)
    for sequence in (0, 1):
        await append_and_wait(writer, batch(b"tail", topic_id=root.topics["planes"].id, producer=session(sequence)))
    await _stage(root)
    await _delay(root, *hidden)
    await _share(root)
    await _hold(root)
    await root.store.put(keys.broker("a"), b'{"address": "127.0.0.1:9650"}')
    return root, {info.key: await root.store.get(info.key) async for info in root.store.list("")}


async def _stage(root: Root) -> None:
    """A prepared transaction with one staged batch."""
    staged = await root.create_topic(keys.STAGED_TOPIC, internal_kind="staged")
    topic = await root.create_topic(keys.TRANSACTIONS_TOPIC, transaction_coordinators="1")
    of = Transaction("xid", 0, b"\x01" * 16, 1, 1)
    data = batch(b"staged", topic_id=root.topics[keys.STAGED_TOPIC].id)
    [offset] = await append_and_wait(await root.writer(staged.bundles[0]), data)
    stream = Stream(b"", root.topics["planes"].id, 0)
    reference = Reference(stream, 0, offset, 1, len(data.data), crc32c(data.data), 0, 0)
    known = IdValue(of.producer_id, 1, Kind.TWO_PHASE, 60_000, 0, 1, State.PREPARED, False, (Part(1, {stream: 1}),))
    for entry in (
        ReferencesEntry(*of[2:], 0, ReferencesValue(of, 0, (reference,))),
        IdEntry(of.transactional_id, known),
    ):
        record = encode(entry)
        await root.put_internal(topic, record.key, record.value)


async def _hidden_topics(root: Root) -> tuple[Topic, Topic]:
    near = await root.create_topic(keys.DELAYED_TOPIC, keys.NEAR_PARTITIONS, internal_kind="staged")
    return near, await root.create_topic(keys.DELAYED_FAR_TOPIC, keys.FAR_PARTITIONS, internal_kind="hidden")


async def _put_block(root: Root, topic: Topic, due_us: int, place: int = 0, *, is_moved: bool = True) -> None:
    """Two messages. `is_moved`: out of the intake, to a range."""
    ids = Ids(pa.array([0, 1], pa.int64()), pa.array([0, 1], pa.uint32()))
    data = encode_batch(batch_of([1, 2], [due_us, due_us + 1]))
    block = encode_block(PartitionId(root.topics["flights"].id, 1), 1, data, ids if is_moved else None)
    await root.put_internal(topic, block.key, block.value, place)


async def _delay(root: Root, near: Topic, far: Topic) -> None:
    """Timed messages in a hidden file, in segments behind it, in a range of a minute and in the intake;
    one of them is recalled.
    """
    timers = await root.create_topic(keys.TIMERS_TOPIC)
    await _put_block(root, far, DAY_US + 5)
    await _put_block(root, near, MINUTE_US, 1)
    for _ in range(2):
        await _put_block(root, near, MINUTE_US, is_moved=False)
    for entry in (
        WatermarkEntry(Key(MINUTE_US // 2, 0, 0)),
        FlushedEntry(Flushed(0, (Piece(1, MINUTE_US),))),
        RangeEntry(RangeId(True, 0), Range(DAY_US, 2 * DAY_US, 0, False, 4, 2000)),
        RangeEntry(RangeId(False, 1), Range(MINUTE_US, 2 * MINUTE_US, 0, False, 2, 1000)),
        RecallEntry(Id(1, 0), MINUTE_US),
    ):
        record = encode_timer(entry)
        await root.put_internal(timers, record.key, record.value)


async def _share(root: Root) -> None:
    """Two queue groups: one has finished some messages behind one that it has not."""
    topic = await root.create_topic(keys.SHARES_TOPIC)
    flights = root.topics["flights"].id
    for entry in (
        StartEntry(ShareKey("g", flights, 0), 3),
        ChunkEntry(ShareKey("g", flights, 0), 0, bytes((0, 0, 0, 4, 5, 10, 3))),
        StartEntry(ShareKey("h", flights, 1), 3),
    ):
        record = encode_share(entry)
        await root.put_internal(topic, record.key, record.value)


async def _hold(root: Root) -> None:
    """One partition has an exclusive producer, another one had one."""
    topic = await root.create_topic(keys.HOLDERS_TOPIC)
    flights = root.topics["flights"].id
    for entry in (
        HolderEntry(PartitionId(flights, 0), Holder(exclusive_id(b"i" * 16), "n", 3)),
        HolderEntry(PartitionId(flights, 1), Holder(b"", "", 2)),
    ):
        record = encode_holder(entry)
        await root.put_internal(topic, record.key, record.value)


@cache
def filled() -> tuple[Root, dict[str, bytes]]:
    return _runner.run(_filled())


def names() -> list[str]:
    return sorted(key for key in filled()[1] if key != keys.CLUSTER)


def seeds() -> list[bytes]:
    return [HEADER.pack(number, 1) + filled()[1][key] for number, key in enumerate(names())]


def spoil(rng: random.Random, data: bytes) -> bytes:
    number = rng.randrange(len(names()))
    key = names()[number]
    content = filled()[1][key]
    if rng.random() < 0.5:
        return HEADER.pack(number, 1) + mutate(rng, content, data)
    return HEADER.pack(number, 0) + _with_other_fields(rng, key, content)


def _with_other_fields(rng: random.Random, key: str, content: bytes) -> bytes:
    folder = key.split("/")[-2]
    for name, kind, message in _SEALED:
        if folder == name:
            return mutate_sealed(rng, kind, unseal(kind, message(), content, key), content)
    return spoil_segment(rng, content) if folder == "segments" else mutate(rng, content, content)


async def _check(data: bytes) -> None:
    if len(data) < HEADER.size or data[0] >= len(names()):
        return
    number, is_plain = HEADER.unpack_from(data)
    key = names()[number]
    root, objects = filled()
    store = MemoryStore("fuzz", seeded_sources())
    spoiled = data[HEADER.size :]
    for name, content in {**objects, key: spoiled}.items():
        await store.put(name, content)
    checked = await check_root(store, root.cluster, run_blocking=run_inline)
    await check_features(StoredRoot(store, root.cluster, seeded_sources()), checked)
    is_damaged = is_plain and spoiled != objects[key] and keys.parse_broker(key) is None
    if is_damaged and not any(key in problem.object_key for problem in checked.problems):
        raise Untyped(f"fsck says nothing of {key}, which was edited: {checked.problems}")
    if spoiled == objects[key] and checked.problems:
        raise Untyped(f"fsck finds {checked.problems} in a clean root")
    await _inspect(store, root, key)


async def _inspect(store: MemoryStore, root: Root, key: str) -> None:
    reports: list[Report] = [
        await cluster_report(store, seeded_sources(), full=True, on_bundle=lambda done, total: None),
        await transactions_report(store, seeded_sources(), every=True),
        await timers_report(store, seeded_sources(), every=True),
        await shares_report(store, seeded_sources(), every=True),
    ]
    for bundle in range(root.cluster.bundles):
        findings = Findings()
        view = await view_ledger(ledger_of(store, bundle, cluster=root.cluster), findings, full=False)
        reports += [ledger_report(view, findings, newest=0), await checkpoint_report(store, bundle, None)]
    if "/segments/" in key:
        bundle = int(key.split("/")[1])
        reports.append(await segment_report(store, bundle, keys.number(key)))
    with redirect_stdout(io.StringIO()):
        for report in reports:
            show(report, OutputFormat.JSON)
        show(reports[-1], OutputFormat.TABLE)


def check(data: bytes) -> None:
    try:
        _runner.run(_check(data))
    except LedgerMQError as error:
        raise Untyped(f"a damaged object is to be reported, not raised: {error!r}") from error


def surfaces() -> list[Surface]:
    return [Surface("root-object", seeds(), check, spoil, weight=0.5)]
