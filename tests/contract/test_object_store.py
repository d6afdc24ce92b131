"""The contract of `ObjectStore`, on every backend and every wrapper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from crc32c import crc32c

from ledgermq.client.consuming.fetching.direct_reads import CannotRead, DirectReads
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.conformance.checks import CHECKS, Place
from ledgermq_ledger.object_store.contract import AlreadyExists, FenceClosed, ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.hdfs.store import open_hdfs
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.probe import probe_store
from ledgermq_ledger.object_store.s3.store import CLIENTS, open_s3
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from tests.servers.clouds import open_cloud
from tests.stores.counting import CountingMeter
from tests.stores.faulty import FaultyStore

FENCE = "0001-00000000000000000007-00ff"
URL_LIFE_MS = 60_000


@dataclass
class Backend:
    """`open` opens the same root once more, as another process would."""

    name: str
    open: Callable[[], Awaitable[ObjectStore]]


BACKENDS = [
    "memory",
    "file",
    "resilient",
    "metered",
    "resilient-metered-file",
    "faulty",
    *(f"{client}-s3-moto" for client in CLIENTS),
    *(pytest.param(f"{client}-s3-minio", marks=pytest.mark.real) for client in CLIENTS),
    pytest.param("resilient-s3-minio", marks=pytest.mark.real),
    pytest.param("azure", marks=pytest.mark.real),
    pytest.param("gcs", marks=pytest.mark.real),
    pytest.param("hdfs", marks=pytest.mark.real),
]
CLOSED_BY_AGE = ("moto", "minio", "azure", "gcs")
"""Ends of the names of stores whose fences close by time."""


def library(backend: str) -> str | None:
    """What sends its requests."""
    name = backend.partition("-")[0]
    return name if name in CLIENTS else None


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path, sources: Sources) -> AsyncIterator[Backend]:
    opened: list[ObjectStore] = []
    memory = MemoryStore("contract", sources)

    async def base(name: str) -> ObjectStore:
        if name.endswith("file"):
            return FileStore(tmp_path / "root")
        if name.endswith("s3-moto"):
            return await open_s3(request.getfixturevalue("moto_root"), library(name))
        if name.endswith("s3-minio"):
            return await open_s3(request.getfixturevalue("minio_root"), library(name))
        if name in ("azure", "gcs"):
            return await open_cloud(request.getfixturevalue(f"{name}_root"))
        if name.endswith("hdfs"):
            return open_hdfs(request.getfixturevalue("hdfs_root"), Sources())
        return memory

    async def open_store() -> ObjectStore:
        store = await base(request.param)
        if "metered" in request.param:
            store = MeteredStore(store, CountingMeter())
        if "resilient" in request.param:
            store = ResilientStore(store, sources, in_flight_max=8)
        if "faulty" in request.param:
            store = FaultyStore(store, sources)
        opened.append(store)
        return store

    yield Backend(request.param, open_store)
    for store in opened:
        await store.close()


@pytest.fixture
async def store(backend: Backend) -> ObjectStore:
    return await backend.open()


async def keys_of(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, start_after)]


async def test_a_created_object_is_read_back_from_a_store_opened_again(store: ObjectStore, backend: Backend) -> None:
    await store.put_if_absent("ledgers/0001/segments/1", [b"abc", memoryview(b"-def-")[1:4], bytearray(b"ghi")])
    assert await (await backend.open()).get("ledgers/0001/segments/1") == b"abcdefghi"


async def test_every_byte_that_is_read_is_counted(store: ObjectStore) -> None:
    await store.put_if_absent("a/1", [b"0123456789"])
    meter = CountingMeter()
    metered = MeteredStore(store, meter)
    assert await metered.get("a/1") == b"0123456789"
    assert await metered.get_range("a/1", 2, 3) == b"234"
    assert await metered.get_suffix("a/1", 4) == b"6789"
    assert {name: total.bytes_received for (name, _), total in meter.totals.items()} == {
        "get": 10,
        "get_range": 3,
        "get_suffix": 4,
    }


@pytest.mark.parametrize("buffers", [[], [b""], [b"", b"", b"x", b""]])
async def test_empty_buffers(store: ObjectStore, buffers: list[bytes]) -> None:
    await store.put_if_absent("a/empty", buffers)
    assert await store.get("a/empty") == b"".join(buffers)
    assert (await store.head("a/empty")).size == len(b"".join(buffers))
    assert await store.get_suffix("a/empty", 10) == b"".join(buffers)
    assert await store.get_range("a/empty", 5, 10) == b""


async def test_large_objects_of_many_buffers(store: ObjectStore) -> None:
    buffers = [bytes([i % 251]) * (1 + i % 4099) for i in range(3000)]
    data = b"".join(buffers)
    await store.put_if_absent("a/large", buffers)
    assert await store.get("a/large") == data
    assert await store.get_range("a/large", 1_000_000, 2_000_000) == data[1_000_000:3_000_000]
    assert await store.get_suffix("a/large", 3_000_001) == data[-3_000_001:]


async def test_views_of_wider_items_are_written_whole(store: ObjectStore) -> None:
    wide = memoryview(bytes(range(16))).cast("I")
    await store.put_if_absent("a/wide", [wide])
    assert await store.get("a/wide") == bytes(range(16))


@pytest.mark.parametrize("check", CHECKS)
async def test_what_a_user_checks_of_a_store(backend: Backend, sources: Sources, check: str) -> None:
    """Each rule of `ledgermq store check`."""
    if backend.name.endswith("moto") and check in ("race", "expiry"):
        pytest.skip("moto looks, then writes, without a lock, and at no expiry: both are tried on the real server")
    assert await CHECKS[check](Place(await backend.open(), await backend.open(), "a/", sources))


LISTED = sorted(
    [
        "a",
        "a-b",
        "a-b/x",
        "a.b/x",
        "a/0",
        "a/x",
        "a/x-y",
        "a/x/y",
        "a0/x",
        "aa/x",
        "ab",
        "Z/x",
        "_z/x",
        "topic=t/p=0/1",
        "topic=t/p=0/10",
    ],
    key=str.encode,
)


async def fill(store: ObjectStore, backend: Backend) -> list[str]:
    """A file system cannot hold a file and a folder of one name, and MinIO does not list both; no
    key of ours asks for it.
    """
    is_tree = backend.name.endswith(("file", "minio", "hdfs"))
    names = [n for n in LISTED if n not in ("a", "a-b", "a/x")] if is_tree else LISTED
    for name in reversed(names):
        await store.put_if_absent(name, [b"x"])
    return names


async def test_lists_ascend_as_bytes(store: ObjectStore, backend: Backend) -> None:
    names = await fill(store, backend)
    assert await keys_of(store, "") == names


@pytest.mark.parametrize("prefix", ["a", "a/", "a/x", "a-", "topic=t/p=0/1", "nothing/", "b", "a/x/y", "a/x/y/"])
async def test_lists_of_a_prefix(store: ObjectStore, backend: Backend, prefix: str) -> None:
    names = await fill(store, backend)
    assert await keys_of(store, prefix) == [name for name in names if name.startswith(prefix)]


@pytest.mark.parametrize(
    "start_after", ["", "Z", "a", "a-b", "a/", "a/x", "a/x/y", "a/x/z", "a0", "zzz", "topic=t/p=0/1"]
)
@pytest.mark.parametrize("prefix", ["", "a", "a/"])
async def test_lists_start_after_a_key(store: ObjectStore, backend: Backend, prefix: str, start_after: str) -> None:
    names = await fill(store, backend)
    wanted = [name for name in names if name.startswith(prefix) and name > start_after]
    assert await keys_of(store, prefix, start_after) == wanted


@pytest.mark.slow
async def test_long_lists_go_on_over_pages(backend: Backend) -> None:
    store = await backend.open()
    count = 1100  # S3 gives 1,000 a page
    names = [f"a/{i:04d}" for i in range(count)]
    for at in range(0, count, 50):
        await asyncio.gather(*(store.put_if_absent(name, [b""]) for name in names[at : at + 50]))
    assert await keys_of(store, "a/") == names
    assert await keys_of(store, "a/", names[count - 3]) == names[count - 2 :]
    await store.delete(names)
    assert await keys_of(store, "") == []


async def test_a_list_may_be_left_and_the_store_changed_meanwhile(store: ObjectStore) -> None:
    names = [f"a/{i:02d}" for i in range(40)]
    for name in names:
        await store.put_if_absent(name, [b""])
    seen = []
    async for info in store.list("a/"):
        seen.append(info.key)
        await store.delete([info.key])
        if len(seen) == 30:
            break
    assert seen == names[:30]
    assert await keys_of(store, "a/") == names[30:]


async def test_hidden_objects_never_show(store: ObjectStore) -> None:
    for key in (".hidden", "a/.hidden", ".b/x", "a/b"):
        await store.put_if_absent(key, [b"x"])
        assert await store.get(key) == b"x"
    await store.put_if_absent("a/.c/d", [b"x"])
    assert await keys_of(store, "") == ["a/b"]
    await store.delete([".hidden", "a/.hidden", ".b/x", "a/.c/d"])
    with pytest.raises(ObjectMissing):
        await store.get(".hidden")


BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a b",
    "ä",
    "a\n",
    "a\0b",
    "a?b",
    "a\\b",
    "x" * 901,
    ".tmp/a",
]


@pytest.mark.parametrize("key", [*BAD_KEYS, "parquet/_tmp/fence/x"])
async def test_keys_that_could_leave_the_root_are_refused(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: store.put_if_absent(key, [b""]),
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.get_suffix(key, 1),
        lambda: store.head(key),
        lambda: store.delete([key]),
        lambda: store.fenced_puts(FENCE, [key], URL_LIFE_MS),
    ):
        await store.open_fence(FENCE)
        with pytest.raises(InvalidRequest):
            await call()
    await store.close_fence(FENCE)


@pytest.mark.parametrize("prefix", ["/", "../", "a/../b", "a//b", "a b"])
async def test_prefixes_that_could_leave_the_root_are_refused(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(InvalidRequest):
        await keys_of(store, prefix)


@pytest.mark.parametrize("fence", ["", "a/b", "..", ".a", "x" * 201])
async def test_fence_names_are_one_path_part(store: ObjectStore, fence: str) -> None:
    for call in (
        lambda: store.open_fence(fence),
        lambda: store.close_fence(fence),
        lambda: store.fenced_puts(fence, [], URL_LIFE_MS),
    ):
        with pytest.raises(InvalidRequest):
            await call()


async def test_fenced_puts_create_what_they_named_and_nothing_else(store: ObjectStore) -> None:
    await store.open_fence(FENCE)
    await store.open_fence(FENCE)
    puts = await store.fenced_puts(
        FENCE, ["parquet/topic=t/partition=0/1", "parquet/topic=t/partition=0/2"], URL_LIFE_MS
    )
    await puts.put_if_absent("parquet/topic=t/partition=0/1", [b"ab", b"", b"cd"])
    assert await store.get("parquet/topic=t/partition=0/1") == b"abcd"
    with pytest.raises(AlreadyExists):
        await puts.put_if_absent("parquet/topic=t/partition=0/1", [b"other"])
    with pytest.raises(InvalidRequest):
        await puts.put_if_absent("parquet/topic=t/partition=0/3", [b"x"])
    assert await keys_of(store, "") == ["parquet/topic=t/partition=0/1"]
    await store.close_fence(FENCE)
    await store.close_fence(FENCE)
    assert await store.list_fences() == []


async def test_a_closed_fence_refuses_who_held_a_permission_before(backend: Backend) -> None:
    if backend.name.endswith(CLOSED_BY_AGE):
        pytest.skip("these close a fence by time: the check `expiry`, and tests/contract/test_s3_real.py")
    store, other = await backend.open(), await backend.open()
    with pytest.raises(FenceClosed):
        await store.fenced_puts(FENCE, ["a/1"], URL_LIFE_MS)
    await store.open_fence(FENCE)
    puts = await store.fenced_puts(FENCE, ["a/1", "a/2"], URL_LIFE_MS)
    await puts.put_if_absent("a/1", [b"in time"])
    assert list(await other.list_fences()) == [FENCE]
    await other.close_fence(FENCE)
    with pytest.raises(FenceClosed):
        await puts.put_if_absent("a/2", [b"late"])
    with pytest.raises(FenceClosed):
        await store.fenced_puts(FENCE, ["a/2"], URL_LIFE_MS)
    assert await keys_of(other, "") == ["a/1"]
    assert list(await store.list_fences()) == []


async def test_cancelled_puts_leave_all_or_nothing(store: ObjectStore) -> None:
    data = bytes(range(256)) * 8192
    for i in range(10):
        put = asyncio.create_task(store.put_if_absent(f"a/{i}", [data]))
        for _ in range(i):
            await asyncio.sleep(0)
        put.cancel()
        await asyncio.gather(put, return_exceptions=True)
    for key in await keys_of(store, "a/"):
        assert await store.get(key) == data
    await store.put_if_absent("b/after", [b"the store still works"])


async def test_the_probe_accepts_it_and_leaves_nothing(store: ObjectStore, sources: Sources) -> None:
    await probe_store(store, sources)
    assert await keys_of(store, "") == []


async def test_the_url_opens_the_same_kind_of_store(store: ObjectStore, backend: Backend) -> None:
    assert store.url.startswith(("memory://", "file:///", "s3://", "az://", "gs://", "hdfs://"))
    assert "secret" not in store.url
    assert store.url == (await backend.open()).url
    assert store.fences_close_at_once != backend.name.endswith(CLOSED_BY_AGE)


async def test_what_is_shared_is_read_by_others(store: ObjectStore, tmp_path: Path) -> None:
    """By a URL for objects in files and on S3; others have none.

    It says nothing of whether the object is there.
    """
    await store.put_if_absent("a/b=c/0007", [b"0123456789"])
    shared = await store.share("a/b=c/0007", 60_000)
    missing = await store.share("a/missing", 60_000)
    if shared is None or missing is None:
        assert shared is missing is None
        return
    part = pb.FetchedPartition(batches=[pb.FetchedBatch(length=4, position=3, crc=crc32c(b"3456"), object=1)])
    with ThreadPoolExecutor(1) as pool:
        reads = DirectReads(shared.partition("a/")[0], pool)
        assert await reads.read(pb.FetchHeader(partitions=[part], objects=[shared])) == [b"3456"]
        with pytest.raises(CannotRead):
            await reads.read(pb.FetchHeader(partitions=[part], objects=[missing]))
