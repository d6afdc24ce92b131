"""What only a real S3 server can show: signatures, expiry, refused credentials, uploads that break
off.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from infra.minio import Minio
from ledgermq.errors import LedgerMQError, StoreUnusable, Unauthorized
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import AlreadyExists, FenceClosed, FencedPuts, ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.probe import probe_store
from ledgermq_ledger.object_store.s3.location import parse_s3_url
from ledgermq_ledger.object_store.s3.signed_wire import S3Client
from ledgermq_ledger.object_store.s3.store import open_s3
from ledgermq_ledger.object_store.s3.wire import S3Silent
from tests.stores.backends import s3_store

pytestmark = pytest.mark.real


async def first_error(store: ObjectStore, operation: str) -> LedgerMQError:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "put_if_absent": lambda: store.put_if_absent("a/b", [b"x"]),
        "put": lambda: store.put("a/b", b"x"),
        "get": lambda: store.get("a/b"),
        "get_suffix": lambda: store.get_suffix("a/b", 4),
        "delete": lambda: store.delete(["a/b"]),
        "delete many": lambda: store.delete(["a/b", "a/c"]),
        "list": lambda: anext(aiter(store.list(""))),
    }
    with pytest.raises(LedgerMQError) as raised:
        await calls[operation]()
    return raised.value


OPERATIONS = ["put_if_absent", "put", "get", "get_suffix", "delete", "delete many", "list"]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_wrong_credentials(minio_root: str, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with s3_store(minio_root) as store:
        assert isinstance(await first_error(store, operation), Unauthorized)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    async with s3_store(minio_root) as store:
        assert isinstance(await first_error(store, operation), Unauthorized)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_no_such_bucket(minio_root: str, operation: str) -> None:
    async with s3_store(minio_root.replace("ledgermq-test", "no-such-bucket")) as store:
        assert isinstance(await first_error(store, operation), StoreUnusable)


async def test_the_probe_names_what_is_wrong(
    minio_root: str, monkeypatch: pytest.MonkeyPatch, sources: Sources
) -> None:
    async with s3_store(minio_root.replace("ledgermq-test", "no-such-bucket")) as store:
        with pytest.raises(StoreUnusable, match="NoSuchBucket"):
            await probe_store(store, sources)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with s3_store(minio_root) as store:
        with pytest.raises(Unauthorized):
            await probe_store(store, sources)


async def test_the_store_refuses_a_fenced_put_after_its_time(minio_root: str) -> None:
    async with s3_store(minio_root) as store:
        puts = await store.fenced_puts("fence", ["a/in-time", "a/late"], url_life_ms=4000)
        await puts.put_if_absent("a/in-time", [b"x"])
        with pytest.raises(AlreadyExists):
            await puts.put_if_absent("a/in-time", [b"y"])
        with pytest.raises(FenceClosed):
            await refused(puts, "a/in-time")
        with pytest.raises(FenceClosed):
            await puts.put_if_absent("a/late", [b"x"])
        await store.delete(["a/in-time"])
        with pytest.raises(FenceClosed):
            await puts.put_if_absent("a/in-time", [b"back again"])
        assert [info.key async for info in store.list("")] == []


async def refused(puts: FencedPuts, key: str) -> None:
    """Use the same URL, for an object that exists, until the store refuses it for another reason."""
    async with asyncio.timeout(20):
        while True:
            with suppress(AlreadyExists):
                await puts.put_if_absent(key, [b"z"])
            await asyncio.sleep(0.2)


async def test_a_presigned_put_cannot_be_sent_without_its_condition(minio_root: str) -> None:
    location = parse_s3_url(minio_root)
    client = S3Client(location, 2)
    url = client.presign("put_object", 60, Key=f"{location.prefix}/a", IfNoneMatch="*")
    assert "if-none-match" in url
    assert client.send("PUT", url, None, [b"x"]).status in (400, 403)
    assert client.send("PUT", url, {"If-None-Match": "*"}, [b"x"]).status == 200
    assert client.send("PUT", url, {"If-None-Match": "*"}, [b"y"]).status == 412
    client.close()


async def test_an_upload_that_takes_too_long_is_broken_off_and_leaves_nothing(minio_root: str) -> None:
    location = parse_s3_url(minio_root)
    client = S3Client(location, 2)
    url = client.presign("put_object", 60, Key=f"{location.prefix}/a", IfNoneMatch="*")
    with pytest.raises(S3Silent, match="longer"):
        client.send("PUT", url, {"If-None-Match": "*"}, [b"x" * (8 << 20)], seconds_max=0.001)
    client.close()
    async with s3_store(minio_root) as store:
        with pytest.raises(ObjectMissing):
            await store.get("a")
        await store.put_if_absent("a", [b"y"])


async def test_credentials_and_endpoint_from_the_environment(
    minio: Minio, minio_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = minio_root.partition("?")[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL", minio.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    async with s3_store(bare) as store:
        await store.put_if_absent("a/b", [b"x"])
        assert store.url == bare
    async with s3_store(minio_root) as store:
        assert await store.get("a/b") == b"x"


async def test_credentials_from_a_profile(
    minio: Minio, minio_root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[tests]\naws_access_key_id={minio.access_key}\naws_secret_access_key={minio.secret_key}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "tests")
    async with s3_store(minio_root) as store:
        await store.put_if_absent("a/b", [b"x"])
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(LedgerMQError, match="nobody"):
        await open_s3(minio_root)


async def test_the_root_of_a_bucket_needs_no_prefix(minio_root: str) -> None:
    async with s3_store(re.sub(r"/root-\d+", "", minio_root)) as store:
        await store.put_if_absent("at-the-root/a", [b"x"])
        assert [info.key async for info in store.list("at-the-root/")] == ["at-the-root/a"]
        await store.delete(["at-the-root/a"])


async def test_what_other_tools_leave_in_the_bucket_does_not_confuse_a_list(minio_root: str) -> None:
    location = parse_s3_url(minio_root)
    client = S3Client(location, 2)
    for name in ("/", "/a/", "/a/b c+ä&%.txt", "/ledgers/", "-other/a"):
        url = client.presign("put_object", Key=f"{location.prefix}{name}")
        assert client.send("PUT", url, None, [b""]).status == 200, name
    client.close()
    async with s3_store(minio_root) as store:
        await store.put_if_absent("a/b", [b"x"])
        assert [info.key async for info in store.list("")] == ["a/b", "a/b c+ä&%.txt"]
        assert [info.key async for info in store.list("a/", "a/b")] == ["a/b c+ä&%.txt"]
