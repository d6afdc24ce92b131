"""The local store of `Retry.metaq`: what it has survives, it belongs to one handler, and a file that
is damaged or foreign is refused.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.consuming.message import Message
from ledgermq.client.groups.handlers.recovering.local_store import APPLICATION_ID, LocalStore, MessageKey
from ledgermq.errors import (
    DataDamaged,
    FormatNotSupported,
    InvalidConfig,
    LedgerMQError,
    ResourceExhausted,
    StoreFull,
    StoreUnusable,
    UsedElsewhere,
)
from ledgermq.sources import Sources
from tests.servers.small_disk import small_disk

KEY = MessageKey(7, 1, 42)
MESSAGE = Message("t", 1, 42, b"k", b"v" * 100, (("h", None), ("h", b"2")), None, "tag")
ERROR = ValueError("no \ud800 text")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "g.retry"


async def opened(path: Path, cluster: str = "c", group: str = "g", **bounds: int) -> LocalStore:
    store = LocalStore(path, **{"messages_max": 100, "bytes_max": 10**8, **bounds}, sources=Sources())
    try:
        await store.open(cluster, group)
    except BaseException:
        await store.close()
        raise
    return store


async def filled(path: Path, count: int = 3) -> None:
    store = await opened(path)
    for offset in range(count):
        await store.add(KEY._replace(offset=offset), MESSAGE._replace(offset=offset), ERROR)
    await store.close()


async def test_what_is_stored_is_there_after_a_restart_as_it_was(path: Path) -> None:
    store = await opened(path)
    await store.add(KEY, MESSAGE, ERROR)
    await store.add(KEY, MESSAGE._replace(value=b"other"), ERROR)  # stored already
    other = MESSAGE._replace(offset=41, key=None, value=None, headers=(), timestamp_us=5, tag=None)
    await store.add(KEY._replace(offset=41), other, ERROR)
    await store.note_recoveries(KEY, 3, ERROR)
    await store.close()
    store = await opened(path)
    assert (len(store), KEY in store, KEY._replace(topic_id=8) in store) == (2, True, False)
    assert store.oldest_first() == [KEY, KEY._replace(offset=41)]
    assert await store.load(KEY) == (MESSAGE, 3)
    assert await store.load(KEY._replace(offset=41)) == (other, 0)
    await store.remove(KEY)
    await store.close()
    store = await opened(path)
    assert store.oldest_first() == [KEY._replace(offset=41)]
    await store.close()


async def test_a_change_is_durable_when_its_call_returns(path: Path) -> None:
    """SQLite syncs its log in each transaction."""
    store = await opened(path)
    connection = store._file._connection
    assert connection is not None
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.close()


async def test_the_bounds_hold_and_removing_makes_room(path: Path) -> None:
    store = await opened(path, messages_max=2)
    keys = [KEY._replace(offset=offset) for offset in range(3)]
    outcomes = await asyncio.gather(*(store.add(key, MESSAGE, ERROR) for key in keys), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), ResourceExhausted]
    await store.remove(keys[0])
    await store.add(keys[2], MESSAGE, ERROR)
    await store.close()
    store = await opened(path, bytes_max=1000)
    with pytest.raises(ResourceExhausted, match="bytes_max"):
        await store.add(keys[0], MESSAGE._replace(value=b"x" * 1000), ERROR)
    await store.close()


OPEN_IN_ANOTHER = """
import asyncio, sys
from pathlib import Path
from ledgermq.client.groups.handlers.recovering.local_store import LocalStore
from ledgermq.errors import UsedElsewhere
from ledgermq.sources import Sources
store = LocalStore(Path(sys.argv[1]), 10, 10**6, Sources())
try:
    asyncio.run(store.open("c", "g"))
except UsedElsewhere as error:
    print(error.message)
    sys.exit(7)
"""


@pytest.mark.parametrize("is_new", [True, False])
async def test_two_processes_do_not_share_it(path: Path, is_new: bool) -> None:
    if not is_new:
        await filled(path)
    store = await opened(path)
    command = [sys.executable, "-c", OPEN_IN_ANOTHER, str(path)]
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert found.returncode == 7, found.stderr
    assert f"{path} is in use by another process" in found.stdout
    with pytest.raises(UsedElsewhere, match="another handler of this one"):
        await opened(path)
    await store.add(KEY, MESSAGE, ERROR)
    await store.close()
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


async def test_it_belongs_to_one_group_of_one_cluster(path: Path) -> None:
    await filled(path)
    for given in ({"cluster": "other"}, {"group": "other"}):
        with pytest.raises(InvalidConfig, match=r"belongs to \(cluster, group\) \('c', 'g'\)"):
            await opened(path, **given)  # type: ignore[arg-type]
    await (await opened(path)).close()


def _edit(statement: str) -> Any:
    def edit(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return edit


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"v" * 100)
    data[at + 50] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "text": (lambda path: path.write_text("offsets of another program" * 99), DataDamaged),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:6000]), DataDamaged),
    "a bit of a message": (_flip, DataDamaged),
    "another offset": (_edit("UPDATE messages SET offset = 9 WHERE offset = 0"), DataDamaged),
    "another topic": (_edit("UPDATE messages SET topic = 'u'"), DataDamaged),
    "no text": (_edit("UPDATE messages SET topic = x'ff'"), DataDamaged),
    "no body": (_edit("UPDATE messages SET body = 5"), DataDamaged),
    "no table": (_edit("DROP TABLE messages"), DataDamaged),
    "no owner": (_edit("DELETE FROM owner"), InvalidConfig),
    "a newer version": (_edit("PRAGMA user_version = 2"), FormatNotSupported),
    "another program": (_edit("PRAGMA application_id = 5"), FormatNotSupported),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_or_foreign_file_is_refused_by_name_and_left_as_it_is(path: Path, name: str) -> None:
    asyncio.run(filled(path))
    damage, kind = DAMAGES[name]
    damage(path)
    before = path.read_bytes()
    with pytest.raises(LedgerMQError, match=r"g\.retry") as raised:
        asyncio.run(opened(path))
    assert type(raised.value) is kind
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_not_touched(path: Path) -> None:
    _edit("CREATE TABLE messages (text)")(path)
    before = path.read_bytes()
    with pytest.raises(FormatNotSupported, match="another program"):
        asyncio.run(opened(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("left", [Path.touch, _edit("PRAGMA journal_mode = WAL")], ids=["empty", "no table"])
def test_a_file_that_a_crash_left_at_its_creation_is_new(path: Path, left: Callable[[Path], None]) -> None:
    left(path)
    asyncio.run(filled(path))
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")


async def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"missing/g\.retry: unable to open"):
        await opened(tmp_path / "missing" / "g.retry")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 2) as folder:
        yield folder


async def test_a_full_disk_is_an_error_and_loses_nothing(disk: Path) -> None:
    path, large = disk / "g.retry", MESSAGE._replace(value=b"x" * 100_000)
    store = await opened(path)
    stored = []

    async def fill() -> None:
        for offset in range(100):
            await store.add(KEY._replace(offset=offset), large._replace(offset=offset), ERROR)
            stored.append(KEY._replace(offset=offset))

    with pytest.raises(StoreFull, match="no space is left"):
        await fill()
    assert stored
    assert store.oldest_first() == stored
    for key in stored:
        assert (await store.load(key)).message.value == large.value
    await store.close()
    store = await opened(path)
    assert store.oldest_first() == stored
    await store.close()
