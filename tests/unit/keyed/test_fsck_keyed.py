"""`fsck` of keyed partitions: silent about a healthy root, and each kind of damage is named."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.keyed.note import KeyedNote
from ledgermq_ledger.keyed.version import KeyedVersion, encode_version, newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.files.columns import close_writer, open_writer
from ledgermq_ledger.parquet.files.new_file import FileSink
from ledgermq_ledger.parquet.files.stored_file import parse_footer
from tests.unit.keyed.test_cleaning_faults import AGE_S, Filled, filled
from tests.virtual_time import virtual


async def problems(made: Filled, *, quick: bool = False) -> set[tuple[str, str]]:
    """(code, object) of whatever is found."""
    found = (await check_root(made.store, made.root.cluster, quick=quick, run_blocking=run_inline)).problems
    return {(problem.code, problem.object_key) for problem in found if "keyed/" in problem.object_key}


async def newest(made: Filled) -> KeyedVersion:
    published = await newest_version(made.store, PartitionId(made.topic.id, 0))
    assert published is not None
    return published.version


async def healthy() -> Filled:
    """The log of what was cleaned is gone."""
    made = await filled(2)
    await made.clean()
    await asyncio.sleep(AGE_S)
    await made.clean()
    assert [info async for info in made.store.list("parquet/")] == []
    return made


async def put_next(made: Filled, version: KeyedVersion) -> str:
    changed = replace(version, number=version.number + 1, attempt=b"x" * 16)
    await made.store.put_if_absent(changed.key, [encode_version(changed)])
    return changed.key


async def file_gone(made: Filled) -> tuple[str, str]:
    key = (await newest(made)).files[0].key
    await made.store.delete([key])
    return "OBJECT_MISSING", key


async def flipped_byte(made: Filled) -> tuple[str, str]:
    key = (await newest(made)).files[0].key
    data = bytearray(await made.store.get(key))
    data[10] ^= 1
    await made.store.delete([key])
    await made.store.put_if_absent(key, [bytes(data)])
    return "DATA_DAMAGED", key


async def version_gone(made: Filled) -> tuple[str, str]:
    version = await newest(made)
    await made.store.delete([version.key])
    return "KEYED_GAP", keys.keyed_folder(version.place)


async def version_damaged(made: Filled) -> tuple[str, str]:
    version = await newest(made)
    await made.store.delete([version.key])
    await made.store.put_if_absent(version.key, [b"{}"])
    return "DATA_DAMAGED", version.key


async def wrong_size(made: Filled) -> tuple[str, str]:
    version = await newest(made)
    await put_next(made, replace(version, files=(replace(version.files[0], size=1), *version.files[1:])))
    return "WRONG_LIST", version.files[0].key


async def end_beyond_parquet(made: Filled) -> tuple[str, str]:
    version = await newest(made)
    return "WRONG_END", await put_next(made, replace(version, end=version.end + 1))


async def key_twice(made: Filled) -> tuple[str, str]:
    """A file of the same records stands behind the version's last one."""
    version = await newest(made)
    file = version.files[-1]
    data = await made.store.get(file.key)
    note = KeyedNote.decode(parse_footer(data, file.key).metadata)
    assert note is not None
    first, last = version.end, version.end + 9
    table = pq.ParquetFile(io.BytesIO(data)).read()
    moved = table.set_column(4, table.schema.field(4), pa.array(range(first, first + table.num_rows), pa.int64()))
    sink = FileSink()
    writer = open_writer(sink, {})
    writer.write_table(moved)
    copy = keys.keyed_file(version.place, first, last + 100, version.number + 1, b"y" * 16)
    whole = close_writer(writer, sink, replace(note, first=first, last=last + 100))
    await made.store.put_if_absent(copy, whole.parts)
    added = replace(file, key=copy, first=first, last=last + 100, size=whole.size)
    await put_next(made, replace(version, files=(*version.files, added), end=last + 101))
    return "DATA_DAMAGED", copy


async def left_over(made: Filled) -> tuple[str, str]:
    version = await newest(made)
    key = keys.keyed_file(version.place, 0, 9, version.number, b"o" * 16)
    await made.store.put_if_absent(key, [b"x"])
    return "UNREFERENCED", key


async def under_way(made: Filled) -> tuple[str, str]:
    version = await newest(made)
    key = keys.keyed_file(version.place, 0, 9, version.number + 1, b"o" * 16)
    await made.store.put_if_absent(key, [b"x"])
    return "UNPUBLISHED", key


DAMAGE: list[Callable[[Filled], Awaitable[tuple[str, str]]]] = [
    file_gone,
    flipped_byte,
    version_gone,
    version_damaged,
    wrong_size,
    end_beyond_parquet,
    key_twice,
    left_over,
    under_way,
]


@virtual
async def test_a_healthy_root_is_clean_and_each_damage_is_found() -> None:
    whole = await healthy()
    assert await problems(whole) == set()
    for damage in DAMAGE:
        made = whole.fork()
        expected = await damage(made)
        assert expected in await problems(made), damage.__name__


@pytest.mark.parametrize("quick", [True, False])
@virtual
async def test_a_removed_topic_leaves_versions_that_may_go(quick: bool) -> None:
    made = await filled(2)
    await made.root.remove_topic("t")
    assert ("REMOVED_TOPIC", keys.keyed_folder(PartitionId(made.topic.id, 0))) in await problems(made, quick=quick)
