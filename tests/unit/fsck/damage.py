"""Kinds of damage: a function for each that does it to a root, and returns the key of the object
that has to be named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from crc32c import crc32c

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.chains.checkpoint import encode_checkpoint, newest_checkpoint
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal
from ledgermq_ledger.log.segments.segment import TRAILER, decode_tail
from ledgermq_ledger.object_store.contract import FENCES
from ledgermq_ledger.parquet.files.footer_checksum import footer_bytes
from ledgermq_ledger.topics.topic import Topic
from tests.worlds.ledgers import append_and_wait, batch
from tests.worlds.roots import Root, parquet_keys

Damage = Callable[[Root], Awaitable[str]]
"""Does it; the key of the object that has to be named."""

DAMAGE, UNTIDY, NOTE = Severity.DAMAGE, Severity.UNTIDY, Severity.NOTE


async def slots(root: Root, kind: fmt.SegmentKind = fmt.DATA) -> list[int]:
    """Of bundle 1."""
    found = []
    async for info in root.store.list(keys.segments(1)):
        slot = keys.number(info.key)
        if decode_tail(await root.store.get(info.key), 1, slot).index.kind == kind:
            found.append(slot)
    return found


async def flip(root: Root, key: str, at: int) -> str:
    data = bytearray(await root.store.get(key))
    data[at] ^= 1
    await root.store.put(key, bytes(data))
    return key


async def forge(root: Root, slot: int, change: Callable[[fmt.SegmentIndex], None]) -> str:
    """Another index under a checksum that fits: a bug of ours, not the disk."""
    key = keys.segment(1, slot)
    data = await root.store.get(key)
    index = decode_tail(data, 1, slot).index
    change(index)
    position, _, _, version, zero, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    body = index.SerializeToString()
    await root.store.put(
        key, data[:position] + body + TRAILER.pack(position, len(body), crc32c(body), version, zero, magic)
    )
    return key


async def forge_checkpoint(root: Root, change: Callable[[fmt.Checkpoint], None], steps: int = 1) -> str:
    checkpoint = await newest_checkpoint(root.store, 1)
    checkpoint.number += steps
    change(checkpoint)
    key = keys.checkpoint(1, checkpoint.number)
    await root.store.put(key, encode_checkpoint(checkpoint))
    return key


async def forge_page(root: Root, change: Callable[[fmt.FilePage], None]) -> str:
    number = (await newest_checkpoint(root.store, 1)).partitions[0].newest_page
    key = keys.file_page(1, number)
    page = unseal(ObjectKind.FILE_PAGE, fmt.FilePage(), await root.store.get(key), key)
    change(page)
    await root.store.put(key, seal(ObjectKind.FILE_PAGE, page))
    return key


async def put(root: Root, key: str, data: bytes = b"foreign") -> str:
    await root.store.put(key, data)
    return key


async def delete(root: Root, key: str) -> str:
    await root.store.delete([key])
    return key


async def last_slot(root: Root) -> int:
    return (await slots(root))[-1]


async def slot_before_checkpoint(root: Root) -> int:
    return (await newest_checkpoint(root.store, 1)).state.slot


async def parquet(root: Root, number: int = 0) -> str:
    return (await parquet_keys(root.store))[number]


def set_base(index: fmt.SegmentIndex, by: int) -> None:
    index.batches[0].base_offset += by


async def cut_segment(root: Root) -> str:
    key = keys.segment(1, await last_slot(root))
    return await put(root, key, (await root.store.get(key))[:-5])


async def swap_segments(root: Root) -> str:
    first, last = (keys.segment(1, slot) for slot in (await slots(root))[-2:])
    return await put(root, last, await root.store.get(first))


async def delete_claim(root: Root) -> str:
    return await delete(root, keys.segment(1, (await slots(root, fmt.CLAIM))[0]))


async def overlap(root: Root) -> str:
    """A file of a plan that a second process ran again."""
    first = await parquet(root)
    name = keys.parse_parquet(first)
    assert name is not None
    return await put(
        root, keys.ParquetName(name.topic, name.partition, 0, 4, name.topic_id, 9).key, await root.store.get(first)
    )


async def foreign_parquet(root: Root) -> str:
    return await put(root, keys.ParquetName("flights", 0, 100, 104, 1, 1).key, b"not a Parquet file")


async def park(root: Root) -> str:
    def change(checkpoint: fmt.Checkpoint) -> None:
        checkpoint.partitions[0].parked.CopyFrom(
            fmt.Parked(plan=3, first_slot=checkpoint.trim_slot, object_key="the/object", reason="why")
        )

    await forge_checkpoint(root, change)
    return "the/object"


async def future_plan(root: Root) -> str:
    plan = fmt.CompactionPlan(bundle=1, number=9, put_id=b"p" * 16)
    return await put(root, keys.compaction(1, 9), seal(ObjectKind.COMPACTION_PLAN, plan))


async def open_plan(root: Root, slot: int, put_id: bytes) -> None:
    number = (await newest_checkpoint(root.store, 1)).finished_plan + 1
    plan = fmt.CompactionPlan(bundle=1, number=number, put_id=b"p" * 16)
    plan.slots.add(slot=slot, put_id=put_id, kind=fmt.DATA)
    await put(root, keys.compaction(1, number), seal(ObjectKind.COMPACTION_PLAN, plan))


async def plan_of_another_put(root: Root) -> str:
    slot = await last_slot(root)
    await open_plan(root, slot, b"x" * 16)
    return keys.segment(1, slot)


async def plan_of_a_missing_slot(root: Root) -> str:
    await open_plan(root, 999, b"x" * 16)
    return keys.segment(1, 999)


async def topic_outside(root: Root) -> str:
    topic = await root.create_topic("lost", 1, 2)
    root.topics["lost"] = Topic(topic.id, "lost", (7,))
    await root.remove_topic("lost")
    return keys.ledger(7)


async def unknown_topic(root: Root) -> str:
    await append_and_wait(await root.writer(2), batch(b"x", topic_id=77))
    return keys.ledger(2)


async def wrong_bundle(root: Root) -> str:
    await append_and_wait(await root.writer(2), batch(b"x", topic_id=root.topics["flights"].id))
    return keys.ledger(2)


async def open_fence(root: Root) -> str:
    fence = keys.fence(1, 1, b"p" * 16)
    await root.store.open_fence(fence)
    return f"{FENCES}{fence}"


async def old_page(root: Root) -> str:
    page = fmt.FilePage(bundle=1, plan=1, put_id=b"p" * 16)
    return await put(root, keys.file_page(1, 1), seal(ObjectKind.FILE_PAGE, page))


async def old_snapshot(root: Root) -> str:
    snapshot = fmt.Snapshot(bundle=0, plan=1, put_id=b"p" * 16)
    assert (await newest_checkpoint(root.store, 0)).snapshot_plan > 1
    return await put(root, keys.snapshot(0, 1), seal(ObjectKind.SNAPSHOT, snapshot))


async def missing_snapshot(root: Root) -> str:
    return await delete(root, keys.snapshot(0, (await newest_checkpoint(root.store, 0)).snapshot_plan))


async def missing_page(root: Root) -> str:
    return await delete(root, keys.file_page(1, (await newest_checkpoint(root.store, 1)).partitions[0].newest_page))


def parquet_end(by: int) -> Damage:
    """The checkpoint says that Parquet reaches further than it does."""

    async def make(root: Root) -> str:
        def change(checkpoint: fmt.Checkpoint) -> None:
            checkpoint.partitions[1].parquet_end += by

        await forge_checkpoint(root, change)
        files = [key for key in await parquet_keys(root.store) if "partition=1" in key]
        return files[-1]

    return make


def end_of_partition(by: int) -> Damage:
    async def make(root: Root) -> str:
        def change(checkpoint: fmt.Checkpoint) -> None:
            checkpoint.state.ends[1].end += by

        return await forge_checkpoint(root, change)

    return make


def index_of(slot: Callable[[Root], Awaitable[int]], change: Callable[[fmt.SegmentIndex], None]) -> Damage:
    async def make(root: Root) -> str:
        return await forge(root, await slot(root), change)

    return make


def copy_put_id(index: fmt.SegmentIndex) -> None:
    index.put_id = index.previous


async def flip_batch(root: Root) -> str:
    return await flip(root, keys.segment(1, await last_slot(root)), 1000)


async def flip_index(root: Root) -> str:
    return await flip(root, keys.segment(1, await last_slot(root)), -40)


async def delete_slot(root: Root) -> str:
    return await delete(root, keys.segment(1, await slot_before_checkpoint(root)))


async def delete_last_but_one(root: Root) -> str:
    first, last = (await slots(root))[-2:]
    await delete(root, keys.segment(1, first))
    return keys.segment(1, last)


async def flip_checkpoint(root: Root) -> str:
    return await flip(root, keys.checkpoint(1, (await newest_checkpoint(root.store, 1)).number), 9)


async def delete_parquet(root: Root) -> str:
    return await delete(root, await parquet(root))


async def flip_page_index(root: Root) -> str:
    """What Parquet's own checksums leave out; a reader that believes it skips pages."""
    key = await parquet(root)
    return await flip(root, key, -footer_bytes(await root.store.get(key), key) - 5)


async def insert_bytes(root: Root) -> str:
    """Between batches and index: each is still what it was."""
    key = keys.segment(1, await last_slot(root))
    data = await root.store.get(key)
    tail = decode_tail(data, 1, keys.number(key)).tail_length
    return await put(root, key, data[:-tail] + bytes(8) + data[-tail:])


async def flip_end_of_claim(root: Root) -> str:
    """Where its trailer says that its index begins."""
    return await flip(root, keys.segment(1, (await slots(root, fmt.CLAIM))[-1]), -25)


async def later_version(root: Root) -> str:
    return await flip(root, keys.checkpoint(1, (await newest_checkpoint(root.store, 1)).number), -12)


async def trim_beyond_end(root: Root) -> str:
    return await forge_checkpoint(root, lambda checkpoint: setattr(checkpoint, "trim_slot", 999))


async def flip_parquet(root: Root, at: int) -> str:
    return await flip(root, await parquet(root), at)


async def break_chain(root: Root) -> str:
    """A valid segment below the checkpoint that no link leads to: its records are in no
    ledger any more.
    """
    slot = await slot_before_checkpoint(root)
    await forge(root, slot, lambda index: setattr(index, "put_id", b"?" * 16))
    return keys.segment(1, slot + 1)


async def wrong_size(root: Root) -> str:
    def change(page: fmt.FilePage) -> None:
        page.partitions[0].files[0].size += 1

    await forge_page(root, change)
    return await parquet(root)


def set_sequence(index: fmt.SegmentIndex, sequence: int) -> None:
    index.batches[0].sequence = sequence


def set_count(index: fmt.SegmentIndex, count: int) -> None:
    index.batches[0].record_count = count


def move_first(index: fmt.SegmentIndex) -> None:
    index.batches[0].position -= 8
    index.batches[0].length += 8


def set_plan(checkpoint: fmt.Checkpoint, plan: int) -> None:
    checkpoint.finished_plan = plan


KINDS: dict[str, tuple[Severity, str, Damage]] = {
    "a bit of a batch": (DAMAGE, "DATA_DAMAGED", flip_batch),
    "a bit of an index": (DAMAGE, "DATA_DAMAGED", flip_index),
    "a segment cut off": (DAMAGE, "DATA_DAMAGED", cut_segment),
    "a segment in another's place": (DAMAGE, "DATA_DAMAGED", swap_segments),
    "a segment gone": (DAMAGE, "MISSING_SEGMENT", delete_slot),
    "a claim gone": (DAMAGE, "MISSING_CLAIM", delete_claim),
    "a gap in offsets": (DAMAGE, "OFFSET_GAP", index_of(last_slot, lambda index: set_base(index, 1))),
    "an offset doubled": (DAMAGE, "OFFSET_DOUBLED", index_of(last_slot, lambda index: set_base(index, -1))),
    "a sequence doubled": (DAMAGE, "RECORD_DOUBLED", index_of(last_slot, lambda index: set_sequence(index, 1))),
    "a first sequence doubled": (DAMAGE, "RECORD_DOUBLED", index_of(last_slot, lambda index: set_sequence(index, 0))),
    "a sequence left out": (DAMAGE, "SEQUENCE_GAP", index_of(last_slot, lambda index: set_sequence(index, 7))),
    "a wrong number of records": (DAMAGE, "DATA_DAMAGED", index_of(last_slot, lambda index: set_count(index, 2))),
    "a batch at a wrong place": (DAMAGE, "BAD_INDEX", index_of(slot_before_checkpoint, move_first)),
    "a put id doubled": (DAMAGE, "PUT_ID_DOUBLED", index_of(last_slot, copy_put_id)),
    "a chain that leads nowhere": (DAMAGE, "OFFSET_GAP", break_chain),
    "bytes that are in no index": (DAMAGE, "DATA_DAMAGED", insert_bytes),
    "a bit of a claim's trailer": (DAMAGE, "DATA_DAMAGED", flip_end_of_claim),
    "a checkpoint of a later version": (DAMAGE, "FORMAT_NOT_SUPPORTED", later_version),
    "a checkpoint that trims what is not there yet": (DAMAGE, "DATA_DAMAGED", trim_beyond_end),
    "a damaged checkpoint": (DAMAGE, "DATA_DAMAGED", flip_checkpoint),
    "a checkpoint that goes back": (DAMAGE, "WENT_BACK", lambda root: forge_checkpoint(root, lambda c: set_plan(c, 0))),
    "records that are nowhere": (DAMAGE, "OFFSET_GAP", end_of_partition(4)),
    "an end that is too low": (DAMAGE, "WRONG_END", end_of_partition(-4)),
    "a Parquet file gone": (DAMAGE, "OBJECT_MISSING", delete_parquet),
    "a bit of a Parquet file": (DAMAGE, "DATA_DAMAGED", lambda root: flip_parquet(root, 60)),
    "a bit of a page index": (DAMAGE, "DATA_DAMAGED", flip_page_index),
    "a bit of a Parquet footer": (DAMAGE, "DATA_DAMAGED", lambda root: flip_parquet(root, -100)),
    "a Parquet file twice": (DAMAGE, "RANGES_OVERLAP", overlap),
    "something else under the name of a Parquet file": (DAMAGE, "DATA_DAMAGED", foreign_parquet),
    "a list that ends too early": (DAMAGE, "DATA_DAMAGED", parquet_end(4)),
    "a list with another size": (DAMAGE, "WRONG_SIZE", wrong_size),
    "a page gone": (DAMAGE, "OBJECT_MISSING", missing_page),
    "a snapshot gone": (DAMAGE, "OBJECT_MISSING", missing_snapshot),
    "a plan ahead of its time": (DAMAGE, "PLAN_AHEAD", future_plan),
    "an open plan of another put": (DAMAGE, "OTHER_SEGMENT", plan_of_another_put),
    "an open plan of a slot that is gone": (DAMAGE, "MISSING_SEGMENT", plan_of_a_missing_slot),
    "a parked partition": (DAMAGE, "PARKED", park),
    "a topic in a bundle that is not": (DAMAGE, "UNKNOWN_BUNDLE", topic_outside),
    "records of a topic that never was": (DAMAGE, "UNKNOWN_TOPIC", unknown_topic),
    "records in another bundle than their topic's": (DAMAGE, "WRONG_BUNDLE", wrong_bundle),
    "a file that Spark would read": (
        DAMAGE,
        "FOREIGN_OBJECT",
        lambda root: put(root, "parquet/topic=flights/partition=0/part-0.parquet"),
    ),
    "a ledger of no bundle": (DAMAGE, "FOREIGN_LEDGER", lambda root: put(root, keys.segment(9, 1))),
    "a file that Spark passes over": (
        UNTIDY,
        "FOREIGN_OBJECT",
        lambda root: put(root, "parquet/topic=flights/_SUCCESS"),
    ),
    "a strange object": (
        UNTIDY,
        "FOREIGN_OBJECT",
        lambda root: put(root, "ledgers/0001/segments/00000000000000000001.bak"),
    ),
    "a page that nothing leads to": (UNTIDY, "UNREFERENCED", old_page),
    "a snapshot that is not in force": (UNTIDY, "UNREFERENCED", old_snapshot),
    "a fence of a finished plan": (UNTIDY, "OPEN_FENCE", open_fence),
    "a void segment": (NOTE, "VOID_SEGMENT", index_of(last_slot, lambda index: index.ClearField("previous"))),
    "a slot after a gap": (NOTE, "AFTER_GAP", delete_last_but_one),
}
