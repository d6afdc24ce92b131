"""Membership by heartbeats in the store, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable, Unauthorized
from ledgermq_broker.cluster.heartbeat import LOAD_MAX, Heartbeat, decode_heartbeat, encode_heartbeat
from ledgermq_broker.cluster.membership import Membership, Superseded
from ledgermq_broker.features import ANNOUNCED
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectInfo
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.full import RefusingStore
from tests.virtual_time import virtual, virtual_sources

INTERVAL_S = 1.0


class ContentStore(StoreWrapper):
    """ETags by content, as S3 gives them; counts the bodies that are read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore("", virtual_sources()))
        self.reads = 0

    async def get(self, key: str) -> bytes:
        self.reads += 1
        return await super().get(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix, start_after):
            data = await self.inner.get(info.key)
            yield ObjectInfo(info.key, info.size, str(hash(data)), info.modified_ms)


def member(store: StoreWrapper | MemoryStore, name: str, address: str = "") -> Membership:
    sources = virtual_sources(sum(name.encode()))
    return Membership(store, sources, name, address or f"{name}:1", INTERVAL_S, features=ANNOUNCED)


async def joined(store: StoreWrapper | MemoryStore, name: str, address: str = "") -> Membership:
    found = member(store, name, address)
    await found.join()
    return found


@virtual
async def test_brokers_see_each_other_and_what_they_own() -> None:
    store = MemoryStore()
    a, b = await joined(store, "a"), await joined(store, "b")
    await a.beat({1: 4, 2: 9}, {3: "damaged"})
    await b.look()
    assert b.live()["a"].bundles == {1: 4, 2: 9}
    assert b.live()["a"].troubles == {3: "damaged"}
    assert sorted(b.live()) == ["a", "b"]
    await a.leave()
    await b.look()
    assert sorted(b.live()) == ["b"]


@virtual
async def test_an_unchanged_heartbeat_is_seen_alive_without_being_read_again() -> None:
    store = ContentStore()
    a, b = await joined(store, "a"), await joined(store, "b")
    await b.look()
    read = store.reads
    for _ in range(30):
        await asyncio.sleep(INTERVAL_S)
        await a.beat({}, {})
        await b.look()
        assert "a" in b.live()
    assert store.reads == read
    await a.beat({1: 1}, {})
    await b.look()
    assert store.reads == read + 1
    assert b.live()["a"].bundles == {1: 1}


@virtual
async def test_silence_alone_is_believed_late_a_refusal_at_once_and_after_an_hour_the_heartbeat_is_removed() -> None:
    store = MemoryStore()
    await joined(store, "a")
    b = await joined(store, "b")
    await b.look()
    await asyncio.sleep(9 * INTERVAL_S)
    await b.look()
    assert "a" in b.live()
    await asyncio.sleep(2 * INTERVAL_S)
    assert "a" in b.live(), "b has not looked since"
    await b.look()
    assert "a" not in b.live()
    assert not b.is_uncontested("a"), "it is silent, and may live"
    await joined(store, "c")
    await b.look()
    b.report_lost("c", refused=False)
    assert "c" in b.live()
    b.report_lost("c", refused=True)
    assert "c" not in b.live()
    await asyncio.sleep(3601)
    await b.look()
    assert [info.key async for info in store.list(keys.BROKERS)] == [keys.broker("b")]


@virtual
async def test_the_last_heartbeat_of_a_dead_broker_is_no_sign_of_life_and_a_later_one_is() -> None:
    store = MemoryStore()
    a, b = await joined(store, "a"), await joined(store, "b")
    await b.look()
    await asyncio.sleep(INTERVAL_S)
    await a.beat({1: 1}, {})
    b.report_lost("a", refused=True)
    await asyncio.sleep(INTERVAL_S / 2)
    await b.look()
    assert b.members["a"].heartbeat.bundles == {1: 1}
    assert b.is_uncontested("a"), "it was written before"
    assert "a" not in b.live()
    await asyncio.sleep(INTERVAL_S / 2)
    await a.beat({1: 1}, {})
    await b.look()
    assert not b.is_uncontested("a"), "an address that refuses this broker's connections is not everybody's"
    assert "a" in b.live()


@virtual
async def test_a_leaving_broker_still_owns_but_gets_nothing() -> None:
    store = MemoryStore()
    a, b = await joined(store, "a"), await joined(store, "b")
    await a.beat({1: 3}, {}, leaving=True)
    await b.look()
    assert b.present()["a"].bundles == {1: 3}
    assert sorted(b.live()) == ["b"]


@virtual
async def test_of_two_brokers_with_one_address_the_later_stays() -> None:
    store = MemoryStore()
    old, other = await joined(store, "old", "same:1"), await joined(store, "other")
    new = await joined(store, "new", "same:1")
    assert new.me.incarnation == old.me.incarnation + 1
    with pytest.raises(Superseded, match="give each broker its own address"):
        await old.look()
    await new.look()
    await other.look()
    assert sorted(other.live()) == ["new", "other"]
    assert sorted(new.live()) == ["new", "other"]


@virtual
async def test_of_two_processes_with_one_id_the_later_stays() -> None:
    store = MemoryStore()
    old = member(store, "same", "one:1")
    await old.join()
    new = Membership(store, virtual_sources(99), "same", "two:1", INTERVAL_S)
    await new.join()
    with pytest.raises(Superseded, match="own id"):
        await old.look()
    await new.look()


@virtual
async def test_foreign_objects_among_the_heartbeats_are_ignored_and_removed_in_the_end() -> None:
    store = MemoryStore()
    a = await joined(store, "a")
    for body in (b"", b"{}", b"[1]", b'{"broker": 1}', b"\xff", b"[" * 100_000):
        await store.put(keys.broker("junk"), body)
        await a.look()
        assert sorted(a.live()) == ["a"]
    await asyncio.sleep(3601)
    await a.beat({}, {})
    await a.look()
    assert [info.key async for info in store.list(keys.BROKERS)] == [keys.broker("a")]


def test_heartbeats_round_trip() -> None:
    heartbeat = Heartbeat("b", "h:1", 3, "ab", 7, {1: 2, 40: 3}, {5: "why"}, leaving=True, peer_address="inside:1")
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat
    heartbeat = replace(heartbeat, release="0.2.0", features=("transactions", "later"))
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat
    heartbeat = replace(heartbeat, loads={1: 3_000_000}, promised={1: "a"})
    assert decode_heartbeat(encode_heartbeat(heartbeat)) == heartbeat


def test_loads_of_a_damaged_heartbeat_are_bounded() -> None:
    found = decode_heartbeat(encode_heartbeat(Heartbeat("b", "h:1", 3, "ab", loads={1: -5, 2: 10**400})))
    assert found is not None
    assert found.loads == {1: 0, 2: LOAD_MAX}


@virtual
async def test_a_broker_whose_heartbeat_names_no_features_lacks_all() -> None:
    """As of a release before features were announced."""
    store = MemoryStore()
    a, b = await joined(store, "a"), await joined(store, "b")
    await a.look()
    assert a.lacking("transactions") == []
    body = json.loads(encode_heartbeat(b.me)) | {"counter": 9}
    del body["features"], body["release"]
    await store.put(keys.broker("b"), json.dumps(body).encode())
    await a.look()
    assert [(found.broker, found.release) for found in a.lacking("transactions")] == [("b", "")]
    await b.beat({}, {})
    await a.look()
    assert a.lacking("transactions") == []
    assert [found.broker for found in a.lacking("of a later release")] == ["a", "b"]


@virtual
async def test_a_strange_object_among_heartbeats_is_never_read_nor_deleted() -> None:
    """A copy that a tool made has a name that no store would take: reading it is an error."""

    class Strewn(StoreWrapper):
        async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            async for info in self.inner.list(prefix, start_after):
                yield info
            for name in ("a (copy).json", "caf\u00e9.json", "notes.txt", "deep/b.json", ".json"):
                yield ObjectInfo(keys.BROKERS + name, 2, "etag", 0)

    store = Strewn(MemoryStore("", virtual_sources()))
    a, b = await joined(store, "a"), await joined(store, "b")
    for _ in range(4):
        await asyncio.sleep(3600)
        await a.beat({}, {})
        await b.beat({}, {})
        await a.look()
        await b.look()
    assert sorted(a.live()) == sorted(b.live()) == ["a", "b"]


REFUSALS = pytest.mark.parametrize(
    "refusal", [StoreFull("no space is left"), StoreUnusable("read-only"), Unauthorized("no permission")]
)


async def beat_in_vain(*members: Membership) -> None:
    for each in members:
        with pytest.raises(LedgerMQError):
            await each.beat({}, {})


@REFUSALS
@virtual
async def test_while_the_store_takes_no_heartbeats_silence_proves_nothing(refusal: LedgerMQError) -> None:
    """Else every broker of a full bucket would take all others for dead, and refuse their bundles'
    readers.
    """

    store = RefusingStore()
    a, b, c = await joined(store, "a"), await joined(store, "b"), await joined(store, "c")
    await a.look()
    store.refusal = refusal
    await beat_in_vain(a, b, c)
    await asyncio.sleep(100 * INTERVAL_S)
    await a.look()
    assert sorted(a.live()) == ["a", "b", "c"]
    a.report_lost("b", refused=True)
    a.report_lost("c", refused=False)
    assert sorted(a.live()) == ["a"]
    store.refusal = None
    await a.beat({}, {})


@REFUSALS
@virtual
async def test_when_the_store_takes_heartbeats_again_each_broker_has_time_for_its_next_one(
    refusal: LedgerMQError,
) -> None:
    """The first that beats would take all others for dead else, by heartbeats that could not be
    written, and claim their bundles.
    """

    store = RefusingStore()
    a, b, c = await joined(store, "a"), await joined(store, "b"), await joined(store, "c")
    await b.look()
    store.refusal = refusal
    for _ in range(30):
        await asyncio.sleep(INTERVAL_S)
        await beat_in_vain(a, b, c)
        await b.look()
    b.report_lost("c", refused=True)
    store.refusal = None
    await b.beat({}, {})
    await b.look()
    assert sorted(b.live()) == ["a", "b"], "c has ended, whatever the store says"
    await asyncio.sleep(11 * INTERVAL_S)
    await b.beat({}, {})
    await b.look()
    assert sorted(b.live()) == ["b"], "it was silent for ten intervals in which it could have beaten"


@virtual
async def test_after_hours_in_a_full_store_brokers_do_not_remove_each_others_heartbeats() -> None:
    store = RefusingStore()
    a, b = await joined(store, "a"), await joined(store, "b")
    store.refusal = StoreFull("no space is left")
    for _ in range(20):
        await beat_in_vain(a, b)
        await a.look()
        await b.look()
        await asyncio.sleep(600)
    assert sorted(a.live()) == sorted(b.live()) == ["a", "b"]
    store.refusal = None
    await a.beat({}, {})
    await a.look()
    assert sorted([info.key async for info in store.list(keys.BROKERS)]) == [keys.broker("a"), keys.broker("b")]
