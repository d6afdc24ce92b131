"""`CloudSigning`: what obstore does not do for Azure and Google: sign URLs, list from a key in pages, read
the store's clock. The vendor's library signs, lists and deletes, in threads, with its own retries off.

A `Vendor` makes the blocking requests, each sent exactly once. Knows no keys of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.s3.sending import Sender, expect
from ledgermq_ledger.object_store.s3.wire import READERS_MAX, WRITERS_MAX, Answer, S3Refused, Signing

T = TypeVar("T")
Page = tuple[list[dict[str, Any]], str | None]
"""Entries (Key, Size, ETag, LastModified) and the token of the next page."""


class Vendor(Protocol):
    """The blocking side of a cloud's library. Raises as `S3Wire`.

    `clock_url` answers a HEAD without credentials, whatever the status, with a `Date`.
    `create_headers`: those of a signed PUT, by which the store refuses it where the object exists.
    """

    sender: Sender
    clock_url: str
    create_headers: Mapping[str, str]

    def list_page(self, prefix: str, start_after: str, token: str | None) -> Page: ...

    def delete(self, name: str) -> None:
        """Delete one object. Raises S3Refused with status 404 where there is none."""

    def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]: ...

    def sign_get(self, name: str, life_s: int) -> str | None: ...

    def signed_ms(self, url: str, life_ms: int) -> int: ...

    def is_over(self, url: str) -> bool:
        """Whether the life of a signed URL is over, by this machine's clock."""

    def close(self) -> None: ...


class CloudSigning(Signing):
    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._readers = ThreadPoolExecutor(READERS_MAX, "cloud-read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, "cloud-write")

    async def list_page(self, prefix: str, start_after: str, token: str | None) -> Page:
        return await self._run(self._readers, partial(self._vendor.list_page, prefix, start_after, token))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete the objects, one request each: a cloud takes nothing for that. A missing one is no error."""
        ended = await asyncio.gather(
            *(self._run(self._writers, partial(self._delete, name)) for name in set(names)), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error

    async def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]:
        return await self._run(self._readers, partial(self._vendor.sign_creates, names, life_s))

    async def sign_get(self, name: str, life_s: int) -> str | None:
        return await self._run(self._readers, partial(self._vendor.sign_get, name, life_s))

    def signed_ms(self, url: str, life_ms: int) -> int:
        return self._vendor.signed_ms(url, life_ms)

    async def put_signed(self, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        send = partial(self._vendor.sender.send, "PUT", url, self._vendor.create_headers, buffers, seconds_max)
        try:
            await self._run(self._writers, lambda: expect(send(), 200, 201))
        except S3Refused as answer:
            if answer.status == 403 and self._vendor.is_over(url):  # Azurite gives no reason
                answer.message = f"the signed URL has expired; {answer.message}"
            raise

    async def clock(self) -> Answer:
        return await self._run(self._readers, lambda: self._vendor.sender.send("HEAD", self._vendor.clock_url))

    async def close(self) -> None:
        """Close, without waiting for cancelled requests: their threads end by themselves, within the time-outs."""
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._vendor.close()

    def _delete(self, name: str) -> None:
        try:
            self._vendor.delete(name)
        except S3Refused as answer:
            if answer.status != 404 or answer.code not in ("", "NoSuchKey", "BlobNotFound"):
                raise

    async def _run(self, pool: ThreadPoolExecutor, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, step)
