"""`S3Store`: objects in a bucket of S3, or of whatever speaks its protocol and honours `If-None-Match: *`.

Invariants: a conditional put is sent once and its status told as it is. A fenced put is a URL that was signed before the caller's
look at the newest checkpoint; the store's own clock, shown by the `Date` of an answer that came between signing and look, differs
from the signing time by at most a third of the URL's life, else there is no permission. After its life the store refuses the URL, and
an upload takes no longer than that life. So nothing needs to be made or removed for a fence, and none is ever listed.
The store's clock counts whole seconds here. Must not know what the objects mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ledger.object_store.contract import Buffer, FenceClosed, FencedPuts, ObjectInfo, ObjectMissing, ObjectStore, StoreUncertain
from ledger.object_store.names import check_fence, check_key, check_prefix, is_shown
from ledger.object_store.s3_client import URL_LIFE_S, Answer, S3Client, date_ms, signed_ms
from ledger.object_store.s3_errors import error_of_answer, is_expired
from ledger.object_store.s3_location import S3Location, parse_s3_url
from ledgermq.errors import InvalidRequest, StoreUnusable

READERS_MAX = 32
WRITERS_MAX = 32
DELETED_AT_ONCE_MAX = 1000
CLOCKS_APART_PARTS = 3
"""The store's clock may be away from ours by one part in this of a URL's life."""
ONLY_IF_ABSENT = {"If-None-Match": "*"}

T = TypeVar("T")


async def open_s3(url: str) -> S3Store:
    """Sends nothing yet. Raises InvalidConfig, Unauthorized (no credentials)."""
    location = parse_s3_url(url)
    client = await asyncio.to_thread(S3Client, location, READERS_MAX + WRITERS_MAX)  # reads files, perhaps asks a metadata service
    return S3Store(location, client)


class S3Store(ObjectStore):
    fences_close_at_once = False

    def __init__(self, location: S3Location, client: S3Client) -> None:
        self.url = location.url
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._client = client
        self._readers = ThreadPoolExecutor(READERS_MAX, "s3-read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, "s3-write")

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self._run(self._writers, partial(self._put, key, self._name(key), buffers, True))

    async def put(self, key: str, data: Buffer) -> None:
        await self._run(self._writers, partial(self._put, key, self._name(key), [data], False))

    async def get(self, key: str) -> bytes:
        return (await self._get(key, None)).body

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        assert start >= 0
        assert length >= 0
        if length == 0:
            await self.head(key)
            return b""
        return (await self._get(key, f"bytes={start}-{start + length - 1}")).body

    async def get_suffix(self, key: str, length: int) -> bytes:
        assert length >= 0
        if length == 0:
            await self.head(key)
            return b""
        return (await self._get(key, f"bytes=-{length}")).body

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        token = None
        last = start = self._root + start_after if start_after else ""
        while True:
            entries, token = await self._run(self._readers, partial(self._client.list_page, self._root + prefix, start, token))
            for entry in entries:
                if entry["Key"] <= last:
                    raise StoreUnusable(f"the object store does not list in ascending order: {entry['Key']!r} after {last!r}")
                last = entry["Key"]
                key = last.removeprefix(self._root)
                if key and is_shown(key) and not key.endswith("/"):  # some tools put empty objects where a file system has folders
                    modified_ms = int(entry["LastModified"].timestamp() * 1000)
                    yield ObjectInfo(key, entry["Size"], entry["ETag"].strip('"'), modified_ms)
            if token is None:
                return

    async def delete(self, keys: Sequence[str]) -> None:
        names = [self._name(key) for key in keys]
        if len(names) == 1:
            await self._run(self._writers, partial(self._delete_one, keys[0], names[0]))
            return
        for at in range(0, len(names), DELETED_AT_ONCE_MAX):
            await self._run(self._writers, partial(self._client.delete_objects, names[at : at + DELETED_AT_ONCE_MAX]))

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(self._readers, partial(self._head, key, self._name(key)))

    async def store_time_ms(self) -> int:
        return await self._run(self._readers, self._date_ms)

    async def open_fence(self, fence: str) -> None:
        check_fence(fence)

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        check_fence(fence)
        names = {key: self._name(key) for key in keys}
        urls = await self._run(self._readers, partial(self._sign, names, url_life_ms // 1000))
        date = await self.store_time_ms()
        for url in urls.values():
            apart_ms = abs(signed_ms(url) - date)
            if apart_ms * CLOCKS_APART_PARTS > url_life_ms:
                raise StoreUncertain(
                    f"our clock and the object store's are {apart_ms} ms apart: too far for URLs that live {url_life_ms} ms"
                )
        return _S3FencedPuts(self, fence, urls, url_life_ms / 1000)

    async def close_fence(self, fence: str) -> None:
        check_fence(fence)

    async def list_fences(self) -> Sequence[str]:
        return []

    async def close(self) -> None:
        """Does not wait for requests that were cancelled: their threads end by themselves, within the time-outs."""
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def put_presigned(self, key: str, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        """For this module's `FencedPuts`."""
        await self._run(self._writers, partial(self._put_presigned, key, url, buffers, seconds_max))

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    async def _run(self, pool: ThreadPoolExecutor, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, step)

    def _put(self, key: str, name: str, buffers: Sequence[Buffer], only_if_absent: bool) -> None:
        if only_if_absent:
            answer = self._client.send(key, "PUT", self._presign_create(name), ONLY_IF_ABSENT, buffers)
        else:
            answer = self._client.send(key, "PUT", self._client.presign("put_object", Key=name), None, buffers)
        _expect_put(key, answer)

    def _put_presigned(self, key: str, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        answer = self._client.send(key, "PUT", url, ONLY_IF_ABSENT, buffers, seconds_max)
        if is_expired(answer.status, answer.body):
            raise FenceClosed(f"{key}: the time to put it has expired", object_key=key)
        _expect_put(key, answer)

    async def _get(self, key: str, wanted: str | None) -> Answer:
        return await self._run(self._readers, partial(self._get_now, key, self._name(key), wanted))

    def _get_now(self, key: str, name: str, wanted: str | None) -> Answer:
        url = self._client.presign("get_object", Key=name)
        answer = self._client.send(key, "GET", url, {"Range": wanted} if wanted else None)
        if wanted and answer.status == 416:  # nothing of the object lies there
            return Answer(206, answer.headers, b"")
        if wanted and answer.status == 200 and answer.body:
            raise StoreUnusable(f"{key}: the object store ignores ranges", object_key=key)
        _expect(key, answer, 200, 206)
        return answer

    def _head(self, key: str, name: str) -> ObjectInfo:
        answer = self._client.send(key, "HEAD", self._client.presign("head_object", Key=name))
        _expect(key, answer, 200)
        headers = answer.headers
        return ObjectInfo(key, int(headers["Content-Length"]), headers["ETag"].strip('"'), date_ms(headers["Last-Modified"]))

    def _delete_one(self, key: str, name: str) -> None:
        answer = self._client.send(key, "DELETE", self._client.presign("delete_object", Key=name))
        with suppress(ObjectMissing):
            _expect(key, answer, 200, 204)

    def _date_ms(self) -> int:
        answer = self._client.send("clock", "HEAD", self._client.presign("head_bucket"))
        if answer.status >= 500:
            raise error_of_answer("clock", answer.status, answer.headers, answer.body)
        if "Date" not in answer.headers:
            raise StoreUnusable("the object store does not tell the time: its answers have no Date")
        return date_ms(answer.headers["Date"])

    def _sign(self, names: dict[str, str], life_s: int) -> dict[str, str]:
        return {key: self._presign_create(name, life_s) for key, name in names.items()}

    def _presign_create(self, name: str, life_s: int = URL_LIFE_S) -> str:
        return self._client.presign("put_object", life_s, Key=name, IfNoneMatch="*")


class _S3FencedPuts(FencedPuts):
    def __init__(self, store: S3Store, fence: str, urls: dict[str, str], seconds_max: float) -> None:
        self._store = store
        self._fence = fence
        self._urls = urls
        self._seconds_max = seconds_max

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key not in self._urls:
            raise InvalidRequest(f"fence {self._fence} was not asked to admit {key}")
        await self._store.put_presigned(key, self._urls[key], buffers, self._seconds_max)


def _expect_put(key: str, answer: Answer) -> None:
    if answer.status == 404:
        raise StoreUnusable(f"{key}: no such bucket, or no S3 server: {error_of_answer(key, 404, {}, answer.body)}", object_key=key)
    _expect(key, answer, 200)


def _expect(key: str, answer: Answer, *statuses: int) -> None:
    if answer.status not in statuses:
        raise error_of_answer(key, answer.status, answer.headers, answer.body)
