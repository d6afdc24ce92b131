"""`fsck` below `archive/` and `sinks/`: silent about what is sound, and each kind of damage is named."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
from crc32c import crc32c

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.segments.segment import encode_segment, first_batch_position
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.archiving.owner import encode_mark
from ledgermq_ledger.sinks import Decision, DoneMark, encode_decision, encode_done
from tests.worlds.ledgers import encode_values
from tests.worlds.roots import Root, parquet_keys

DAMAGE, NOTE = Severity.DAMAGE, Severity.NOTE
WRITE, DECIDED, DONE = "query", 4, 3


@dataclass
class Filled:
    """Root with an archived file, an epoch that is decided, and one that is done."""

    root: Root
    archived: str
    staged: str
    decision: Decision

    async def replace(self, key: str, data: bytes) -> str:
        await self.root.store.delete([key])
        await self.root.store.put_if_absent(key, [data])
        return key

    async def flip(self, key: str, at: int) -> str:
        data = bytearray(await self.root.store.get(key))
        data[at] ^= 1
        return await self.replace(key, bytes(data))


def staged_rows(put_id: bytes, values: list[bytes], *, record_count: int | None = None) -> bytes:
    data = encode_values(values)
    entry = fmt.BatchEntry(
        topic_id=1,
        record_count=len(values) if record_count is None else record_count,
        position=first_batch_position(),
        length=len(data),
        crc=crc32c(data),
    )
    return b"".join(encode_segment(fmt.SegmentIndex(put_id=put_id, batches=[entry]), [data]))


async def filled(sources: Sources) -> Filled:
    root = await Root.open(MemoryStore("test", sources), sources)
    store = root.store
    await root.create_topic("t")
    await root.produce("t", (0, [b"a", b"b"]))
    await root.compact()
    (key,) = await parquet_keys(store)
    archived = keys.archived(key)
    await store.put_if_absent(archived, [await store.get(key)])
    await store.put_if_absent(keys.ARCHIVE_OWNER, [encode_mark(root.cluster.cluster_id)])
    staged = keys.sink_staged_rows(WRITE, DECIDED, b"s" * 16)
    await store.put_if_absent(staged, [staged_rows(b"s" * 16, [b"x", b"y"])])
    decision = Decision(b"p" * 16, 1, 2, (staged,), {"t": 1}, {})
    await store.put_if_absent(keys.sink_decision(WRITE, DECIDED), [encode_decision(decision)])
    gone = replace(decision, objects=(keys.sink_staged_rows(WRITE, DONE, b"g" * 16),))
    await store.put_if_absent(keys.sink_decision(WRITE, DONE), [encode_decision(gone)])
    await store.put_if_absent(keys.sink_done_epoch(WRITE, DONE), [encode_done(DoneMark(1, b"d" * 16))])
    return Filled(root, archived, staged, decision)


async def bit_of_an_archived_file(made: Filled) -> str:
    return await made.flip(made.archived, 60)


async def bit_of_an_archived_footer(made: Filled) -> str:
    return await made.flip(made.archived, -100)


async def archived_file_under_a_wrong_name(made: Filled) -> str:
    name = keys.parse_archived(made.archived)
    assert name is not None
    data = await made.root.store.get(made.archived)
    await made.root.store.delete([made.archived])
    key = keys.archived(replace(name, last_offset=name.last_offset + 1).key)
    await made.root.store.put_if_absent(key, [data])
    return key


async def archive_of_another_cluster(made: Filled) -> str:
    return await made.replace(keys.ARCHIVE_OWNER, encode_mark("other"))


async def mark_cut_off(made: Filled) -> str:
    return await made.replace(keys.ARCHIVE_OWNER, b'{"format":')


async def bit_of_staged_rows(made: Filled) -> str:
    return await made.flip(made.staged, first_batch_position() + 8)


async def bit_of_a_staged_index(made: Filled) -> str:
    return await made.flip(made.staged, -40)


async def staged_rows_that_are_no_batch(made: Filled) -> str:
    return await made.replace(made.staged, staged_rows(b"s" * 16, [b"x"], record_count=2))


async def staged_rows_of_another_put(made: Filled) -> str:
    return await made.replace(made.staged, staged_rows(b"o" * 16, [b"x", b"y"]))


async def staged_rows_gone(made: Filled) -> str:
    await made.root.store.delete([made.staged])
    return made.staged


async def decision_cut_off(made: Filled) -> str:
    return await made.replace(keys.sink_decision(WRITE, DECIDED), encode_decision(made.decision)[:-9])


async def decision_of_other_rows(made: Filled) -> str:
    changed = replace(made.decision, objects=(keys.sink_staged_rows(WRITE, 77, b"s" * 16),))
    return await made.replace(keys.sink_decision(WRITE, DECIDED), encode_decision(changed))


async def decision_of_more_records(made: Filled) -> str:
    changed = replace(made.decision, records=3)
    return await made.replace(keys.sink_decision(WRITE, DECIDED), encode_decision(changed))


async def done_mark_without_an_id(made: Filled) -> str:
    return await made.replace(keys.sink_done_epoch(WRITE, DONE), json.dumps({"done_ms": 1}).encode())


KINDS: dict[str, tuple[str, Callable[[Filled], Awaitable[str]]]] = {
    "a bit of an archived file": ("DATA_DAMAGED", bit_of_an_archived_file),
    "a bit of an archived footer": ("DATA_DAMAGED", bit_of_an_archived_footer),
    "an archived file under a wrong name": ("WRONG_NAME", archived_file_under_a_wrong_name),
    "an archive of another cluster": ("FOREIGN_ARCHIVE", archive_of_another_cluster),
    "a mark cut off": ("DATA_DAMAGED", mark_cut_off),
    "a bit of staged rows": ("DATA_DAMAGED", bit_of_staged_rows),
    "a bit of a staged index": ("DATA_DAMAGED", bit_of_a_staged_index),
    "staged rows that are no batch": ("DATA_DAMAGED", staged_rows_that_are_no_batch),
    "staged rows of another put": ("WRONG_NAME", staged_rows_of_another_put),
    "staged rows gone": ("OBJECT_MISSING", staged_rows_gone),
    "a decision cut off": ("DATA_DAMAGED", decision_cut_off),
    "a decision that names another epoch's rows": ("WRONG_LIST", decision_of_other_rows),
    "a decision with another number of records": ("WRONG_ROWS", decision_of_more_records),
    "a done mark without an id": ("DATA_DAMAGED", done_mark_without_an_id),
}


async def found(made: Filled) -> set[tuple[Severity, str, str]]:
    checked = await check_root(made.root.store, made.root.cluster, run_blocking=run_inline)
    return {(problem.severity, problem.code, problem.object_key) for problem in checked.problems}


@pytest.mark.parametrize("name", KINDS)
async def test_damage_is_found_for_what_it_is(sources: Sources, name: str) -> None:
    code, make = KINDS[name]
    made = await filled(sources)
    assert await found(made) == set()
    key = await make(made)
    problems = await found(made)
    assert (DAMAGE, code, key) in problems, problems
    assert {each for _, _, each in problems} == {key}


async def test_damaged_rows_of_an_epoch_that_is_done_are_a_note(sources: Sources) -> None:
    """Their records are in their topics, and garbage collection takes them."""
    made = await filled(sources)
    await made.root.store.put_if_absent(keys.sink_done_epoch(WRITE, DECIDED), [encode_done(DoneMark(1, b"d" * 16))])
    key = await made.flip(made.staged, first_batch_position() + 8)
    assert await found(made) == {(NOTE, "DATA_DAMAGED", key)}


async def test_the_rows_of_a_transaction_are_not_looked_for_among_staged_objects(sources: Sources) -> None:
    made = await filled(sources)
    decision = Decision(b"t" * 16, 1, 12, (), {}, {}, "spark-1")
    for attempt in range(2):
        key = keys.sink_decision(WRITE, DECIDED + 1, attempt)
        await made.root.store.put_if_absent(key, [encode_decision(decision)])
    assert await found(made) == set()
    await made.replace(key, encode_decision(decision)[:-9])
    assert await found(made) == {(DAMAGE, "DATA_DAMAGED", key)}


async def test_rows_that_a_driver_publishes_meanwhile_are_not_missed(sources: Sources) -> None:
    """Its last steps fall between the LIST and the reads: done mark, then the staged rows go."""
    made = await filled(sources)
    store = made.root.store

    class Published(MemoryStore):
        async def get(self, key: str) -> bytes:
            if key == made.staged and keys.sink_done_epoch(WRITE, DECIDED) not in self._objects:
                await self.put_if_absent(keys.sink_done_epoch(WRITE, DECIDED), [encode_done(DoneMark(1, b"d" * 16))])
                await self.delete([made.staged])
            return await super().get(key)

    store.__class__ = Published
    assert await found(made) == set()
