"""`SignedWire`: implement `S3Wire` by URLs that botocore presigns and urllib3 sends, in threads;
lists and large deletes use botocore itself.

`If-None-Match: *` is signed into the URL of a conditional put, which therefore cannot be sent
without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ledger.object_store.contract import Buffer
from ledger.object_store.s3_client import URL_LIFE_S, Answer, S3Client, date_ms
from ledger.object_store.s3_errors import refused
from ledger.object_store.s3_wire import READERS_MAX, WRITERS_MAX, S3Object, S3RangesIgnored, S3Wire

ONLY_IF_ABSENT = {"If-None-Match": "*"}

T = TypeVar("T")


class SignedWire(S3Wire):
    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._readers = ThreadPoolExecutor(READERS_MAX, "s3-read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, "s3-write")

    async def put(self, name: str, buffers: Sequence[Buffer], *, only_if_absent: bool) -> None:
        await self._write(partial(self._put, name, buffers, only_if_absent))

    async def get(self, name: str) -> bytes:
        return await self._read(partial(self._get, name, None))

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        return await self._read(partial(self._get, name, f"bytes={start}-{start + length - 1}"))

    async def get_suffix(self, name: str, length: int) -> bytes:
        return await self._read(partial(self._get, name, f"bytes=-{length}"))

    async def head(self, name: str) -> S3Object:
        return await self._read(partial(self._head, name))

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        return await self._read(partial(self._client.list_page, prefix, start_after, token))

    async def delete(self, names: Sequence[str]) -> None:
        step = partial(self._delete_one, names[0]) if len(names) == 1 else partial(self._client.delete_objects, names)
        await self._write(step)

    async def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]:
        """Return URLs that create these objects, each if it is absent, and that the store refuses
        after `life_s`.
        """
        return await self._read(lambda: [self._sign_create(name, life_s) for name in names])

    async def sign_get(self, name: str, life_s: int) -> str:
        """Return a URL that allows its holder to read the object for `life_s`."""
        return await self._read(partial(self._client.presign, "get_object", life_s, Key=name))

    async def put_signed(self, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        await self._write(lambda: _expect(self._client.send("PUT", url, ONLY_IF_ABSENT, buffers, seconds_max), 200))

    async def clock(self) -> Answer:
        """Return an answer that shows the store's time in its `Date`, whatever its status."""
        return await self._read(lambda: self._client.send("HEAD", self._client.presign("head_bucket")))

    async def close(self) -> None:
        """Close the wire, without waiting for cancelled requests: their threads end by themselves,
        within the time-outs.
        """
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _read(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, step)

    async def _write(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, step)

    def _put(self, name: str, buffers: Sequence[Buffer], only_if_absent: bool) -> None:
        url = self._sign_create(name) if only_if_absent else self._client.presign("put_object", Key=name)
        _expect(self._client.send("PUT", url, ONLY_IF_ABSENT if only_if_absent else None, buffers), 200)

    def _get(self, name: str, wanted: str | None) -> bytes:
        answer = self._client.send(
            "GET", self._client.presign("get_object", Key=name), {"Range": wanted} if wanted else None
        )
        if wanted and answer.status == 200 and answer.body:
            raise S3RangesIgnored
        return _expect(answer, 200, 206).body

    def _head(self, name: str) -> S3Object:
        headers = _expect(self._client.send("HEAD", self._client.presign("head_object", Key=name)), 200).headers
        return S3Object(int(headers["Content-Length"]), headers["ETag"].strip('"'), date_ms(headers["Last-Modified"]))

    def _delete_one(self, name: str) -> None:
        _expect(self._client.send("DELETE", self._client.presign("delete_object", Key=name)), 200, 204)

    def _sign_create(self, name: str, life_s: int = URL_LIFE_S) -> str:
        return self._client.presign("put_object", life_s, Key=name, IfNoneMatch="*")


def _expect(answer: Answer, *statuses: int) -> Answer:
    if answer.status not in statuses:
        raise refused(answer.status, answer.headers, answer.body)
    return answer
