"""The contract of offset stores, on every one of them: what is committed grows under one epoch, and
an older epoch is refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import create_engine, text

from infra import mariadb, postgres
from ledgermq import GivenPartition, OffsetEntry, OffsetStore, StoredOffset, TopicPartition
from ledgermq.errors import (
    CommitGoesBack,
    DataDamaged,
    FormatNotSupported,
    InvalidRequest,
    StaleAssignment,
    StoreUnusable,
    Unavailable,
)
from ledgermq.offset_stores import FileOffsetStore, MemoryOffsetStore
from ledgermq.offset_stores.sql import SqlOffsetStore
from ledgermq.sources import Sources

T = TypeVar("T")
ENTRY = {
    "group": "g",
    "topic": "t",
    "topic_id": 1,
    "partition": 0,
    "epoch": 1,
    "counter": 1,
    "offset": 1,
    "metadata": "",
    "commit_ms": 0,
}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres.running() as server:
        yield server.url


@pytest.fixture(scope="module")
def mariadb_url() -> Iterator[str]:
    with mariadb.running() as server:
        yield server.url


DATABASES = ["sqlite", *(pytest.param(name, marks=pytest.mark.real) for name in ("postgres", "mariadb"))]


def url_of(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/one.db" if database == "sqlite" else request.getfixturevalue(f"{database}_url")


@pytest.fixture(params=["memory", "file", *DATABASES])
async def opened(
    request: pytest.FixtureRequest, tmp_path: Path, sources: Sources
) -> AsyncIterator[Callable[[], OffsetStore]]:
    """Opens the same store again, as another process would (memory: the one there is)."""
    memory = MemoryOffsetStore(sources)
    if request.param in ("memory", "file"):
        yield (
            (lambda: memory)
            if request.param == "memory"
            else lambda: FileOffsetStore(tmp_path / "folder" / "offsets.json", sources)
        )
        return
    url = url_of(request, request.param, tmp_path)
    table = f"offsets_{tmp_path.name.replace('-', '_')}"[:60]
    engines = []

    def open_sql() -> OffsetStore:
        engines.append(create_engine(url))
        return SqlOffsetStore(engines[-1], table, sources)

    store = open_sql()
    assert isinstance(store, SqlOffsetStore)
    await store.create_table()
    yield open_sql
    for engine in engines:
        engine.dispose()


@pytest.fixture
def store(opened: Callable[[], OffsetStore]) -> OffsetStore:
    return opened()


def given(partition: TopicPartition = T0, *, epoch: int = 5, topic_id: int = 1) -> GivenPartition:
    return GivenPartition(partition, topic_id, epoch)


async def test_a_store_that_is_opened_again_loads_committed_offsets(opened: Callable[[], OffsetStore]) -> None:
    assert await opened().load("g", [given(), given(T1)]) == {}
    refused = await opened().commit(
        "g", [OffsetEntry(given(), 1, 10, "with ünïcode"), OffsetEntry(given(T1), 1, 2**62)]
    )
    assert refused == {}
    found = await opened().load("g", [given(epoch=6), given(T1, epoch=6)])
    assert {at: (stored.offset, stored.metadata) for at, stored in found.items()} == {
        T0: (10, "with ünïcode"),
        T1: (2**62, ""),
    }
    assert all(stored.commit_ms > 0 for stored in found.values())
    assert await opened().load("other", [given()]) == {}


LONGEST = 249 * "g"
ALIKE = ["billing", "Billing", "billing ", "bıllıng", "caf\u00e9", "cafe\u0301", "cafe", LONGEST, LONGEST[:-1] + "G"]
"""Pairs that some collations take for the same: case, trailing blanks, other letters, composed and decomposed."""


@pytest.mark.parametrize("of", ["group", "topic"])
async def test_names_that_look_alike_have_offsets_of_their_own(opened: Callable[[], OffsetStore], of: str) -> None:
    def place(name: str) -> tuple[str, GivenPartition]:
        return (name, given()) if of == "group" else ("g", given(TopicPartition(name, 0)))

    for offset, name in enumerate(ALIKE, 1):
        group, at = place(name)
        assert await opened().load(group, [at]) == {}, name
        assert await opened().commit(group, [OffsetEntry(at, 1, offset, f"→ {name}")]) == {}
    for offset, name in enumerate(ALIKE, 1):
        group, at = place(name)
        (stored,) = (await opened().load(group, [at])).values()
        assert (stored.offset, stored.metadata) == (offset, f"→ {name}")


OF_BEFORE = """CREATE TABLE `old table` (group_name VARCHAR(249) NOT NULL, topic VARCHAR(249) NOT NULL,
topic_id BIGINT NOT NULL, partition_number INTEGER NOT NULL, epoch BIGINT NOT NULL, counter BIGINT NOT NULL,
next_offset BIGINT, metadata VARCHAR(4096) NOT NULL, commit_ms BIGINT NOT NULL,
PRIMARY KEY (group_name, topic, topic_id, partition_number))"""


@pytest.mark.real
async def test_a_table_of_an_earlier_release_on_mariadb_is_refused_until_it_is_changed(mariadb_url: str) -> None:
    engine = create_engine(mariadb_url)
    with engine.begin() as transaction:
        transaction.execute(text(OF_BEFORE))
        transaction.execute(text("INSERT INTO `old table` VALUES ('Billing', 't', 1, 0, 5, 1, 10, 'ünï', 1)"))
    store = SqlOffsetStore(engine, "old table")
    for call in (store.load("billing", [given()]), store.commit("billing", [OffsetEntry(given(), 1, 1)])):
        with pytest.raises(StoreUnusable, match=r"call create_table\(\) of the store once, or run: ALTER TABLE"):
            await call
    await store.create_table()
    await SqlOffsetStore(engine, "old table").create_table()
    assert await store.load("billing", [given()]) == {}
    assert (await store.load("Billing", [given(epoch=6)]))[T0] == StoredOffset(10, "ünï", 1)
    engine.dispose()


async def test_a_database_that_ignores_case_is_refused(tmp_path: Path) -> None:
    """Whatever ignores it: here columns that were made so by hand."""
    engine = create_engine(f"sqlite:///{tmp_path}/one.db")
    with engine.begin() as transaction:
        transaction.execute(text(OF_BEFORE.replace("group_name VARCHAR(249)", "group_name TEXT COLLATE NOCASE")))
    store = SqlOffsetStore(engine, "old table")
    await store.load("Billing", [given()])
    with pytest.raises(StoreUnusable, match="takes group 'billing', topic 't' for group 'Billing'"):
        await store.load("billing", [given()])
    with pytest.raises(StoreUnusable, match="compares byte by byte"):
        await store.commit("billing", [OffsetEntry(given(), 1, 1)])
    engine.dispose()


async def test_a_load_under_a_higher_epoch_fences_the_former_member(store: OffsetStore) -> None:
    await store.load("g", [given(epoch=5)])
    await store.commit("g", [OffsetEntry(given(epoch=5), 1, 10)])
    await store.load("g", [given(epoch=7)])
    refused = await store.commit("g", [OffsetEntry(given(epoch=5), 2, 20), OffsetEntry(given(T1, epoch=5), 1, 3)])
    assert {at: type(error) for at, error in refused.items()} == {T0: StaleAssignment}
    with pytest.raises(StaleAssignment):
        await store.load("g", [given(epoch=6)])
    assert (await store.load("g", [given(epoch=7)]))[T0].offset == 10


async def test_a_fence_stands_before_anything_is_committed(store: OffsetStore) -> None:
    await store.load("g", [given(epoch=7)])
    refused = await store.commit("g", [OffsetEntry(given(epoch=5), 1, 10)])
    assert isinstance(refused[T0], StaleAssignment)
    assert await store.load("g", [given(epoch=7)]) == {}


async def test_a_delayed_repetition_is_no_error_and_changes_nothing(store: OffsetStore) -> None:
    await store.commit("g", [OffsetEntry(given(), 2, 20)])
    assert await store.commit("g", [OffsetEntry(given(), 1, 10)]) == {}
    assert await store.commit("g", [OffsetEntry(given(), 2, 20)]) == {}
    assert (await store.load("g", [given()]))[T0].offset == 20
    assert isinstance((await store.commit("g", [OffsetEntry(given(), 3, 19)]))[T0], CommitGoesBack)
    assert (await store.load("g", [given(epoch=6)]))[T0].offset == 20
    assert isinstance((await store.commit("g", [OffsetEntry(given(epoch=6), 1, 19)]))[T0], CommitGoesBack)
    assert await store.commit("g", [OffsetEntry(given(epoch=6), 1, 20)]) == {}


async def test_a_topic_that_was_made_again_begins_with_nothing(store: OffsetStore) -> None:
    await store.commit("g", [OffsetEntry(given(topic_id=1), 1, 10)])
    assert await store.load("g", [given(topic_id=2)]) == {}
    assert await store.commit("g", [OffsetEntry(given(topic_id=2), 1, 3)]) == {}
    assert (await store.load("g", [given(topic_id=1)]))[T0].offset == 10


async def test_metadata_is_bounded(store: OffsetStore) -> None:
    refused = await store.commit(
        "g", [OffsetEntry(given(), 1, 10, "x" * 4097), OffsetEntry(given(T1), 1, 10, "é" * 2048)]
    )
    assert {at: type(error) for at, error in refused.items()} == {T0: InvalidRequest}
    assert (await store.load("g", [given(T1)]))[T1].metadata == "é" * 2048


async def test_racing_members_never_take_an_offset_back(opened: Callable[[], OffsetStore]) -> None:
    """Many members with many epochs, each as if in a separate process: the offset only grows, and
    none commits once it is fenced.
    """
    seen: list[int] = []

    async def member(epoch: int) -> None:
        store, mine = opened(), given(epoch=epoch)
        try:
            begun = await insist(lambda: store.load("g", [mine]))
            offset = begun[T0].offset if T0 in begun else 0
            seen.append(offset)
            for counter in range(1, 6):
                offset += 1
                refused = await insist(
                    lambda counter=counter, offset=offset: store.commit("g", [OffsetEntry(mine, counter, offset)])
                )  # type: ignore[misc]
                if refused:
                    raise refused[T0]
        except StaleAssignment:
            return

    await asyncio.gather(*(member(epoch) for epoch in range(1, 9)))
    final = (await insist(lambda: opened().load("g", [given(epoch=9)])))[T0].offset
    assert 5 <= final <= 40
    assert all(offset <= final for offset in seen)


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """A database may ask for a repetition."""
    for _ in range(200):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.01)
    raise AssertionError("the store does not answer")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", DataDamaged),
        ("{}", DataDamaged),
        ("[" * 100_000, DataDamaged),
        ('{"version": 2, "offsets": []}', FormatNotSupported),
        ('{"version": 1, "offsets": [{"group": "g"}]}', DataDamaged),
        (json.dumps({"version": 1, "offsets": [ENTRY | {"offset": -1}]}), DataDamaged),
        (json.dumps({"version": 1, "offsets": [ENTRY | {"topic": 3}]}), DataDamaged),
    ],
)
async def test_a_damaged_file_is_an_error_and_stays_as_it_is(
    tmp_path: Path, content: str, error: type[Exception]
) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    with pytest.raises(error, match=r"offsets\.json"):
        await FileOffsetStore(path).load("g", [given()])
    with pytest.raises(error):
        await FileOffsetStore(path).commit("g", [OffsetEntry(given(), 1, 10)])
    assert path.read_text() == content


async def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable):
        await FileOffsetStore(tmp_path / "file" / "offsets.json").load("g", [given()])


@pytest.mark.parametrize("database", DATABASES)
async def test_results_and_offset_are_stored_together_or_not_at_all(
    request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    engine = create_engine(url_of(request, database, tmp_path))
    store = SqlOffsetStore(engine, "together")
    await store.create_table()
    with engine.begin() as transaction:
        transaction.execute(text("CREATE TABLE results (value INTEGER)"))
    await store.load("g", [given(epoch=1)])

    def work(epoch: int, counter: int, value: int) -> None:
        with engine.begin() as transaction:
            transaction.execute(text("INSERT INTO results VALUES (:value)"), {"value": value})
            store.commit_in(transaction, "g", [OffsetEntry(given(epoch=epoch), counter, value + 1)])

    await asyncio.to_thread(work, 1, 1, 0)
    assert (await store.load("g", [given(epoch=2)]))[T0] == StoredOffset(
        1, "", (await store.load("g", [given(epoch=2)]))[T0].commit_ms
    )
    with pytest.raises(StaleAssignment):
        await asyncio.to_thread(work, 1, 2, 1)
    await asyncio.to_thread(work, 2, 1, 1)
    with engine.begin() as transaction:
        assert [row.value for row in transaction.execute(text("SELECT value FROM results ORDER BY value"))] == [0, 1]
        transaction.execute(text("DROP TABLE results"))
    engine.dispose()


@pytest.mark.parametrize("again", [1, 2])
async def test_a_transaction_whose_end_was_not_known_is_refused_when_it_is_repeated(tmp_path: Path, again: int) -> None:
    """With the same entries, or with new ones for the same messages: its results are there already."""
    engine = create_engine(f"sqlite:///{tmp_path}/one.db")
    store = SqlOffsetStore(engine)
    await store.create_table()
    await store.load("g", [given()])
    with engine.begin() as transaction:
        store.commit_in(transaction, "g", [OffsetEntry(given(), 1, 3)])
    with pytest.raises(CommitGoesBack, match="stored already"), engine.begin() as transaction:
        store.commit_in(transaction, "g", [OffsetEntry(given(), again, 3)])
    with engine.begin() as transaction:
        store.commit_in(transaction, "g", [OffsetEntry(given(), again + 1, 4)])
    engine.dispose()


async def test_a_database_that_cannot_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    store = SqlOffsetStore(create_engine(f"sqlite:///{tmp_path}/nowhere/one.db"))
    with pytest.raises(Unavailable):
        await store.create_table()
