"""`S3Store`: store objects in a bucket of S3, or of another service with its protocol that honours
`If-None-Match: *`.

Invariants: a conditional put is sent once, and its status returned unchanged. A fenced put is a URL
that was signed before the caller's read of the newest checkpoint. The store's own clock is shown by
the `Date` of an answer that came between signing and that read. It may differ from the signing time
by at most a third of the URL's life; otherwise no permission is given. After its life the store
refuses the URL, and an upload takes no longer than that life. So a fence needs no object, and none
is ever listed.

The store's clock counts whole seconds here. `S3Wire` hides the library that sends a request. Fences
and clock need signed URLs and the headers of answers, so these always use `SignedWire`. Must not
know what the objects mean.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from functools import partial

from ledgermq.errors import InvalidConfig, StoreUnusable
from ledgermq_ledger.object_store.contract import (
    Buffer,
    FenceClosed,
    FencedPuts,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    OpenedPuts,
    StoreUncertain,
)
from ledgermq_ledger.object_store.names import check_fence, check_key, check_prefix, is_shown
from ledgermq_ledger.object_store.s3.location import Location, S3Location, parse_s3_url
from ledgermq_ledger.object_store.s3.signed_wire import S3Client, SignedWire
from ledgermq_ledger.object_store.s3.wire import (
    READERS_MAX,
    WRITERS_MAX,
    Part,
    S3Refused,
    S3Wire,
    Signing,
    contract_errors,
    date_ms,
    error_of,
    is_expired,
    refused,
)

DELETED_AT_ONCE_MAX = 1000
CLOCKS_APART_PARTS = 3
"""The store's clock may differ from this machine's by one part in this many of a URL's life."""


CLIENTS = ("obstore", "botocore")
CLIENT_VARIABLE = "LEDGERMQ__S3_CLIENT"
"""For platforms without wheels of obstore, and for tests; not a setting."""


async def open_s3(url: str, library: str | None = None) -> S3Store:
    """Open the store; it sends nothing yet. `library`: the one that sends requests, one of CLIENTS;
    None: the one in CLIENT_VARIABLE, else the first.

    Raises InvalidConfig, Unauthorized (no credentials).
    """
    library = library or os.environ.get(CLIENT_VARIABLE) or CLIENTS[0]
    if library not in CLIENTS:
        raise InvalidConfig(f"{CLIENT_VARIABLE} has to be one of {', '.join(CLIENTS)}, not {library!r}")
    location = parse_s3_url(url)
    client = await asyncio.to_thread(
        S3Client, location, READERS_MAX + WRITERS_MAX
    )  # reads files, perhaps asks a metadata service
    return await store_of(location, client, library)


async def store_of(location: S3Location, client: S3Client, library: str = CLIENTS[0]) -> S3Store:
    """Return the store on this library. Raises ImportError if it is not installed."""
    signed = SignedWire(client)
    if library == "botocore":
        return S3Store(location, signed, signed)
    from ledgermq_ledger.object_store.s3.obstore_wire import (
        s3_obstore_wire,
    )  # late, because obstore need not be installed for the other library

    return S3Store(location, signed, await asyncio.to_thread(s3_obstore_wire, client, signed))


class S3Store(ObjectStore):
    fences_close_at_once = False

    def __init__(self, location: Location, signed: Signing, wire: S3Wire) -> None:
        """`wire` sends the requests for which `signed` is not needed."""
        self.url = location.url
        self._root = f"{location.prefix}/" if location.prefix else ""
        self._signed = signed
        self._wire = wire

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        with contract_errors(key, puts=True):
            await self._wire.put(self._name(key), buffers, only_if_absent=True)

    async def put(self, key: str, data: Buffer) -> None:
        with contract_errors(key, puts=True):
            await self._wire.put(self._name(key), [data], only_if_absent=False)

    async def get(self, key: str) -> bytes:
        with contract_errors(key):
            return await self._wire.get(self._name(key))

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        assert start >= 0
        assert length >= 0
        if length == 0:
            await self.head(key)
            return b""
        return await self._part(key, self._wire.get_range(self._name(key), start, length))

    async def get_suffix(self, key: str, length: int) -> bytes:
        assert length >= 0
        if length == 0:
            await self.head(key)
            return b""
        return await self._part(key, self._wire.get_suffix(self._name(key), length))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        token = None
        last = start = self._root + start_after if start_after else ""
        while True:
            with contract_errors(prefix):
                entries, token = await self._wire.list_page(self._root + prefix, start, token)
            for entry in entries:
                if entry["Key"] <= last:
                    raise StoreUnusable(
                        f"the object store does not list in ascending order: {entry['Key']!r} after {last!r}"
                    )
                last = entry["Key"]
                key = last.removeprefix(self._root)
                # some tools put empty objects where a file system has folders
                if key and is_shown(key) and not key.endswith("/"):
                    modified_ms = int(entry["LastModified"].timestamp() * 1000)
                    yield ObjectInfo(key, entry["Size"], entry["ETag"].strip('"'), modified_ms)
            if token is None:
                return

    async def delete(self, keys: Sequence[str]) -> None:
        names = [self._name(key) for key in keys]
        for at in range(0, len(names), DELETED_AT_ONCE_MAX):
            with suppress(ObjectMissing), contract_errors(keys[at]):
                await self._wire.delete(names[at : at + DELETED_AT_ONCE_MAX])

    async def head(self, key: str) -> ObjectInfo:
        with contract_errors(key):
            found = await self._wire.head(self._name(key))
        return ObjectInfo(key, found.size, found.etag, found.modified_ms)

    async def store_time_ms(self) -> int:
        with contract_errors("clock"):
            answer = await self._signed.clock()
        if answer.status >= 500:
            raise error_of("clock", refused(answer.status, answer.headers, answer.body))
        if "Date" not in answer.headers:
            raise StoreUnusable("the object store's answers have no Date header, which LedgerMQ needs")
        return date_ms(answer.headers["Date"])

    async def open_fence(self, fence: str) -> None:
        check_fence(fence)

    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        check_fence(fence)
        with contract_errors(fence):
            signed = await self._signed.sign_creates([self._name(key) for key in keys], url_life_ms // 1000)
        urls = dict(zip(keys, signed, strict=True))
        date = await self.store_time_ms()
        for url in urls.values():
            apart_ms = abs(self._signed.signed_ms(url, url_life_ms) - date)
            if apart_ms * CLOCKS_APART_PARTS > url_life_ms:
                raise StoreUncertain(
                    f"this machine's clock and the object store's are {apart_ms} ms apart, too far for URLs that live "
                    f"{url_life_ms} ms: set this machine's clock, best by NTP"
                )
        return OpenedPuts(fence, urls, partial(self.put_presigned, seconds_max=url_life_ms / 1000))

    async def close_fence(self, fence: str) -> None:
        check_fence(fence)

    async def list_fences(self) -> Sequence[str]:
        return []

    async def share(self, key: str, life_ms: int) -> str | None:
        with contract_errors(key):
            return await self._signed.sign_get(self._name(key), life_ms // 1000)

    async def close(self) -> None:
        """Close the store, without waiting for cancelled requests."""
        await self._wire.close()
        await self._signed.close()  # it may be the same one

    async def put_presigned(self, key: str, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        with contract_errors(key, puts=True):
            try:
                await self._signed.put_signed(url, buffers, seconds_max)
            except S3Refused as answer:
                if is_expired(answer):
                    raise FenceClosed(f"{key}: the signed URL for its put has expired", object_key=key) from None
                raise

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    async def _part(self, key: str, part: Awaitable[Part]) -> Part:
        """Return the part; empty if the object has no bytes there."""
        with contract_errors(key):
            try:
                return await part
            except S3Refused as answer:
                if answer.status != 416:
                    raise
                return b""
