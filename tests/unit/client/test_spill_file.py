"""The file of a spill: what it has survives, it belongs to one process, and a damaged or foreign one is
refused.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ledgermq import Spill
from ledgermq.client.producing.partition.sessions import EncodedBatch, Session
from ledgermq.client.producing.spilling.spill_file import (
    RESERVE_BYTES,
    LaneKey,
    NewBatch,
    RememberedTopic,
    SpilledRun,
    SpillFile,
    StoredLane,
)
from ledgermq.errors import (
    DataDamaged,
    FormatNotSupported,
    InvalidConfig,
    LedgerMQError,
    StoreFull,
    StoreUnusable,
)
from tests.servers.small_disk import small_disk

KEY = LaneKey(7, 1)
SESSION = Session(b"p" * 16, 5, 2)


def encoded(number: int, size: int = 100, records: int = 2) -> EncodedBatch:
    data = b"%03d" % number + b"v" * size
    return EncodedBatch(data, crc32c(data), records, -5, 2**60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.spill"


async def filled(path: Path, count: int = 3) -> list[int]:
    file = SpillFile(path)
    await file.open()
    await file.set_cluster("c")
    await file.remember([RememberedTopic("t", 7, 4, 1000)])
    batches = [NewBatch(KEY, 10 + 2 * number, encoded(number)) for number in range(count)]
    ids = await file.add([(KEY, StoredLane("t", 4, SESSION))], batches, 99)
    await file.close()
    return ids


async def test_what_is_stored_is_there_after_a_restart_as_it_was(path: Path) -> None:
    ids = await filled(path)
    file = SpillFile(path)
    contents = await file.open()
    assert (contents.cluster_id, contents.topics) == ("c", [RememberedTopic("t", 7, 4, 1000)])
    lane = contents.lanes[KEY]
    assert (lane.topic, lane.base, lane.session) == ("t", 4, SESSION)
    assert lane.runs == [SpilledRun(each, 10 + 2 * number, 2, 103) for number, each in enumerate(ids)]
    assert await file.load(KEY, ids[1:]) == [encoded(1), encoded(2)]
    await file.put_lanes([(KEY, StoredLane("t", 12, Session(b"q" * 16, 6)))])
    await file.remove(ids[:1], [])
    await file.close()
    file = SpillFile(path)
    lane = (await file.open()).lanes[KEY]
    assert (lane.base, lane.session, [run.id for run in lane.runs]) == (12, Session(b"q" * 16, 6), ids[1:])
    await file.remove(ids[1:], [KEY])
    await file.close()
    file = SpillFile(path)
    assert (await file.open()).lanes == {}
    await file.close()


async def test_a_change_is_durable_when_its_call_returns(path: Path) -> None:
    file = SpillFile(path)
    await file.open()
    connection = file._file._connection
    assert connection is not None
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await file.close()


OPEN_IN_ANOTHER = """
import asyncio, sys
from pathlib import Path
from ledgermq.client.producing.spilling.spill_file import SpillFile
from ledgermq.errors import UsedElsewhere
try:
    asyncio.run(SpillFile(Path(sys.argv[1])).open())
except UsedElsewhere as error:
    print(error.message)
    sys.exit(7)
"""


@pytest.mark.parametrize("is_new", [True, False])
async def test_two_processes_do_not_share_it(path: Path, is_new: bool) -> None:
    if not is_new:
        await filled(path)
    file = SpillFile(path)
    await file.open()
    command = [sys.executable, "-c", OPEN_IN_ANOTHER, str(path)]
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert found.returncode == 7, found.stderr
    assert f"spill {path} is in use by another process" in found.stdout
    await file.close()
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def _edit(statement: str) -> Any:
    def edit(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return edit


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"001vvv") + 50] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "text": (lambda path: path.write_text("records of another program" * 99), DataDamaged),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:6000]), DataDamaged),
    "a bit of a record": (_flip, DataDamaged),
    "another partition": (_edit("UPDATE batches SET partition = 2 WHERE id = 1"), DataDamaged),
    "another sequence": (_edit("UPDATE batches SET sequence = 11 WHERE id = 1"), DataDamaged),
    "a batch that is missing": (_edit("DELETE FROM batches WHERE id = 2"), DataDamaged),
    "no body": (_edit("UPDATE batches SET body = 5"), DataDamaged),
    "another session": (_edit("UPDATE lanes SET session_id = x'ff'"), DataDamaged),
    "no lane": (_edit("DELETE FROM lanes"), DataDamaged),
    "another number of partitions": (_edit("UPDATE topics SET partitions = 8"), DataDamaged),
    "no table": (_edit("DROP TABLE batches"), DataDamaged),
    "a newer version": (_edit("PRAGMA user_version = 2"), FormatNotSupported),
    "text that is none": (_edit("UPDATE topics SET name = CAST(x'ff' AS TEXT)"), DataDamaged),
    "another program": (_edit("PRAGMA application_id = 5"), FormatNotSupported),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_or_foreign_file_is_refused_by_name_and_left_as_it_is(path: Path, name: str) -> None:
    asyncio.run(filled(path))
    damage, kind = DAMAGES[name]
    damage(path)
    before = path.read_bytes()
    with pytest.raises(LedgerMQError, match=r"t\.spill") as raised:
        asyncio.run(SpillFile(path).open())
    assert type(raised.value) is kind
    assert path.read_bytes() == before


async def test_a_batch_that_is_damaged_later_is_not_sent(path: Path) -> None:
    ids = await filled(path)
    file = SpillFile(path)
    await file.open()
    await file._file.run(lambda connection: connection.execute("UPDATE batches SET body = x'00' WHERE id = 1"))
    with pytest.raises(DataDamaged, match="batch 1, partition 1 of topic id 7, fails its checksum"):
        await file.load(KEY, ids)
    await file.close()


async def test_a_reserve_that_a_killed_process_left_unfinished_is_made_again(path: Path) -> None:
    ids = await filled(path)
    reserve = path.with_name("t.spill-reserve")
    reserve.write_bytes(b"\0" * 64)
    file = SpillFile(path)
    await file.open()
    await file.add([], [NewBatch(KEY, 16, encoded(3))], 0)
    assert reserve.stat().st_size == RESERVE_BYTES
    assert await file.load(KEY, ids)
    await file.close()


async def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"missing/t\.spill: unable to open"):
        await SpillFile(tmp_path / "missing" / "t.spill").open()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 12) as folder:
        yield folder


async def test_a_full_disk_is_an_error_and_loses_nothing(disk: Path) -> None:
    """Of a call that fails nothing is in the file."""
    path = disk / "t.spill"
    file = SpillFile(path)
    await file.open()
    ids: list[int] = []

    async def fill() -> None:
        for number in range(100):
            new = [NewBatch(KEY, 4 * number + 2 * half, encoded(number, 50_000)) for half in (0, 1)]
            ids.extend(await file.add([(KEY, StoredLane("t"))], new, 0))

    with pytest.raises(StoreFull, match="no space is left"):
        await fill()
    assert ids
    await file.close()
    file = SpillFile(path)  # on a disk without a free byte
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    assert [run.id for run in (await file.open()).lanes[KEY].runs] == ids
    assert len(await file.load(KEY, ids)) == len(ids)
    await file.put_lanes([(KEY, StoredLane("t", 4, SESSION))])
    for each in ids[:-1]:
        await file.remove([each], [])
    with pytest.raises(StoreFull, match="no space is left"):
        await file.add([], [NewBatch(KEY, 0, encoded(0))], 0)
    await file.remove(ids[-1:], [KEY])  # an empty file is small
    await file.add([], [NewBatch(KEY, 0, encoded(0))], 0)
    await file.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": ""}, "path of a Spill must be"),
        ({"path": 5}, "path of a Spill must be"),
        ({"path": "x", "bytes_max": 0}, "bytes_max of a Spill"),
        ({"path": "x", "records_max": 1.5}, "records_max of a Spill"),
    ],
)
def test_a_spill_refuses_wrong_values(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        Spill(**given)
