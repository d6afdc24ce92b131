"""Tables against real brokers in this process: written rows appear, removed rows disappear, and
invalid input is reported.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

import ledgermq
import ledgermq.sync
from ledgermq import errors

_names = (f"table-{number}" for number in itertools.count())
KEYED = {"cleanup.policy": "compact"}


@pytest.fixture
async def client() -> AsyncIterator[ledgermq.Client]:
    async with ledgermq.connect(f"memory://{next(_names)}") as client:
        yield client


async def put(client: ledgermq.Client, *pairs: tuple[str, str | None], topic: str = "t") -> None:
    async with client.producer() as producer:
        for key, value in pairs:
            producer.send(topic, value, key=key)


async def test_a_table_holds_the_latest_value_of_each_key_and_follows(client: ledgermq.Client) -> None:
    await client.create_topic("t", 3, KEYED)
    await put(client, ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", None))
    async with client.table("t") as table:
        assert dict(table.items()) == {b"a": b"3", b"b": b"2"}
        assert (table["a"], table.get("c"), table.get("c", b"none"), "b" in table, b"c" in table) == (
            b"3",
            None,
            b"none",
            True,
            False,
        )
        assert (len(table), sorted(table), sorted(table.values())) == (2, [b"a", b"b"], [b"2", b"3"])
        message = table.message("a")
        assert message is not None
        assert (message.topic, message.key, message.value) == ("t", b"a", b"3")
        assert table.state == "following"
        with pytest.raises(KeyError):
            table["c"]
        await put(client, ("b", None), ("d", "5"))
        await table.wait_caught_up()
        assert dict(table.items()) == {b"a": b"3", b"d": b"5"}
        assert table.size_bytes > 0
    assert table.state == "closed"
    with pytest.raises(errors.Closed):
        table.get("a")


async def test_an_empty_topic_is_an_empty_table(client: ledgermq.Client) -> None:
    await client.create_topic("t", 2, KEYED)
    async with client.table("t") as table:
        assert table.items() == []


async def test_listeners_hear_of_changes(client: ledgermq.Client) -> None:
    await client.create_topic("t", 1, KEYED)
    await put(client, ("a", "1"))
    async with client.table("t") as table:
        heard: list[tuple[bytes, bytes | None]] = []

        async def listen() -> None:
            async for change in table.changes(existing=True):
                heard.append((change.key, change.value))
                if change.key == b"end":
                    return

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await put(client, ("b", "2"), ("nothing", None))
        await table.wait_caught_up()
        await asyncio.sleep(0)
        await put(client, ("a", None), ("end", "."))
        await asyncio.wait_for(listening, 10)
        assert heard == [(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"end", b".")]


async def test_a_slow_listener_gets_the_newest_change_of_each_key(client: ledgermq.Client) -> None:
    await client.create_topic("t", 1, KEYED)
    async with client.table("t") as table:
        changes = table.changes()
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await put(client, ("first", "1"))
        assert (await asyncio.wait_for(first, 10)).key == b"first"
        await put(client, *[("a", str(n)) for n in range(100)], ("b", "1"))
        await table.wait_caught_up()
        assert [(await anext(changes)).value, (await anext(changes)).value] == [b"99", b"1"]
        await changes.aclose()  # type: ignore[attr-defined]


async def test_a_keyed_topic_takes_no_record_without_a_key(client: ledgermq.Client) -> None:
    await client.create_topic("t", 1, KEYED)
    async with client.producer() as producer:
        with pytest.raises(errors.InvalidRecord, match="keyed"):
            await producer.send("t", "value")
        assert (await producer.send("t", "value", key="")).offset == 0, "an empty key is a key"


async def test_what_a_table_cannot_do_is_told(client: ledgermq.Client) -> None:
    with pytest.raises(errors.UnknownTopic):
        async with client.table("missing", request_timeout_s=0.5):
            pass
    with pytest.raises(errors.InvalidConfig, match="table_bytes_max"):
        client.table("t", table_bytes=1)
    with pytest.raises(errors.InvalidConfig, match="auto_offset_reset"):
        client.table("t", auto_offset_reset="latest")
    await client.create_topic("t", 1, KEYED)
    table = client.table("t", table_bytes_max=5_000)
    await table.wait_caught_up()
    await put(client, *[(str(n), "v") for n in range(100)])
    with pytest.raises(errors.ResourceExhausted, match="table_bytes_max"):
        await table.wait_caught_up()
    assert table.state == "failed"
    with pytest.raises(errors.ResourceExhausted):
        table.get("1")
    await table.close()


async def test_a_table_reads_everything_again_where_the_log_begins_later(client: ledgermq.Client) -> None:
    """What it had read may be gone forever by then, tombstones included."""
    await client.create_topic("t", 1, KEYED)
    await put(client, ("old", "1"), ("kept", "2"))
    async with client.table("t") as table:
        table._consumer._reader.seek([(table._consumer._reader.readings[0], 10)])  # as one that was away for long
        changes = table.changes()
        next_change = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        await put(client, ("old", None))
        assert (await asyncio.wait_for(next_change, 10))[:2] == (b"old", None)
        assert dict(table.items()) == {b"kept": b"2"}
        await changes.aclose()  # type: ignore[attr-defined]


def test_a_table_without_asyncio() -> None:
    with ledgermq.sync.connect(f"memory://{next(_names)}") as client:
        client.create_topic("t", 2, KEYED)
        with client.producer() as producer:
            producer.send("t", "1", key="a")
        with client.table("t") as table:
            assert (table["a"], len(table), "b" in table, list(table)) == (b"1", 1, False, [b"a"])
            changes = table.changes(existing=True)
            assert next(changes).value == b"1"
            with client.producer() as producer:
                producer.send("t", "2", key="a")
            assert next(changes).value == b"2"
            changes.close()  # type: ignore[attr-defined]
            table.wait_caught_up(10)
            assert table.items() == [(b"a", b"2")]


async def test_a_table_converts_values_when_they_are_read_and_survives_bad_ones(client: ledgermq.Client) -> None:
    await client.create_topic("t", 1, KEYED)
    await put(client, ("a", '{"n":1}'), ("nothing", "null"), ("bad", "{"), ("gone", "1"), ("gone", None))
    async with client.table("t", deserializer=ledgermq.Serializer.json()) as table:
        assert sorted(table) == [b"a", b"bad", b"nothing"], "null is a value, and removes no key"
        assert (table["a"], table["nothing"], table.get("gone", "none")) == ({"n": 1}, None, "none")
        for read in (lambda: table["bad"], lambda: table.get("bad"), table.values, table.items):
            with pytest.raises(errors.BadValue, match="offset 2: the deserializer refuses"):
                read()
        bad = table.message("bad")
        assert bad is not None
        assert bad.raw == b"{"

        changes = table.changes(existing=True)
        found = {change.key: change for change in [await anext(changes) for _ in range(3)]}
        assert found[b"a"].value == {"n": 1}
        with pytest.raises(errors.BadValue):
            print(found[b"bad"].value)
        await put(client, ("bad", "2"), ("a", None))
        replaced, removed = await anext(changes), await anext(changes)
        assert (replaced.value, removed.value, removed.key) == (2, None, b"a")
        assert sorted(table.items()) == [(b"bad", 2), (b"nothing", None)]
        assert table.state == "following"
