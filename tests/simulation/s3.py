"""The other side of `S3Store`: an S3 in memory, with presigned URLs that expire by its own clock,
in front of the watched store.

The product's `ledgermq_ledger.object_store.s3.store` runs as it is: it signs, looks at the `Date`, reads statuses.
A fenced upload that begins in time may take as long again as its URL lives, and then it lands:
nothing closes a fence here, only age refuses what is late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import formatdate
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectInfo, ObjectMissing
from ledgermq_ledger.object_store.s3.location import S3Location
from ledgermq_ledger.object_store.s3.signed_wire import URL_LIFE_S, Encryption, SignedWire
from ledgermq_ledger.object_store.s3.store import S3Store
from ledgermq_ledger.object_store.s3.wire import Answer
from tests.simulation.trace import Coverage
from tests.simulation.watch import PLACE, WatchedStore

LOCATION = S3Location("simulation")
PAGE = 1000
EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


class SimulatedS3(S3Store):
    """One process's way to the bucket; `sources` is the process's own clock, by which it signs."""

    def __init__(self, watched: WatchedStore, sources: Sources, coverage: Coverage) -> None:
        self._side = _S3Side(watched, sources, coverage)
        wire = SignedWire(self._side)  # type: ignore[arg-type]
        super().__init__(LOCATION, wire, wire)
        self._random = sources.random
        self._coverage = coverage

    async def put_presigned(self, key: str, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        """The store looks at the URL when the upload begins, and has the object when it ends."""
        if self._side.begin(url):
            await asyncio.sleep(self._random.uniform(0, seconds_max))
        await super().put_presigned(key, url, buffers, seconds_max)


class _S3Side:
    """In place of `S3Client`."""

    def __init__(self, watched: WatchedStore, sources: Sources, coverage: Coverage) -> None:
        self._watched = watched
        self._sources = sources
        self._coverage = coverage
        self._begun: set[str] = set()
        self._signed = 0
        self.encryption = Encryption({}, {})

    def presign(self, operation: str, life_s: int = URL_LIFE_S, **parameters: str) -> str:
        self._signed += 1
        signed = self._sources.now_ms() // 1000
        others = "".join(f"&{name}={quote_plus(value)}" for name, value in parameters.items() if name != "Key")
        return (
            f"{PLACE}/{parameters.get('Key', '')}?X-Amz-Date={_amz_date(signed)}&X-Amz-Expires={life_s}"
            f"&operation={operation}&number={self._signed}{others}"
        )

    def begin(self, url: str) -> bool:
        """An upload begins. False: too late."""
        if is_expired(url.partition("?")[2], self._watched.now_ms()):
            return False
        self._begun.add(url)
        return True

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] | None = None,
        seconds_max: float | None = None,
    ) -> Answer:
        place, _, text = url.partition("?")
        query, key = _query_of(text), place.removeprefix(PLACE)[1:]
        began_in_time = url in self._begun
        self._begun.discard(url)  # each upload begins for itself, also one by the same URL
        if is_expired(text, self._watched.now_ms()):
            if not began_in_time:
                self._coverage.saw("a presigned URL was refused by its age")
                return self._answer(403, EXPIRED)
            self._coverage.saw("an upload ended after its URL had expired")
        try:
            return self._do(query["operation"], key, "IfNoneMatch" in query, headers or {}, body or ())
        except ObjectMissing:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        except AlreadyExists:
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")

    def _do(
        self, operation: str, key: str, only_if_absent: bool, headers: Mapping[str, str], body: Sequence[Buffer]
    ) -> Answer:
        watched = self._watched
        match operation:
            case "put_object" if only_if_absent:
                watched.create_now(key, body)
                return self._answer(200)
            case "put_object":
                watched.replace_now(key, b"".join(body))
                return self._answer(200)
            case "get_object":
                return self._answer(206, _range_of(watched.read_now(key), headers.get("Range", "")))
            case "head_object":
                info = watched.info_now(key)
                told = {
                    "Content-Length": str(info.size),
                    "ETag": f'"{info.etag}"',
                    "Last-Modified": _http_date(info.modified_ms),
                }
                return self._answer(200, headers=told)
            case "delete_object":
                watched.delete_now(key)
                return self._answer(204)
            case "head_bucket":
                return self._answer(200)
        raise AssertionError(operation)

    def list_page(self, prefix: str, start_after: str, token: str | None) -> tuple[list[dict[str, Any]], str | None]:
        found = self._watched.list_now(prefix, token or start_after, PAGE)
        return [_entry(info) for info in found], found[-1].key if len(found) == PAGE else None

    def delete_objects(self, names: Sequence[str]) -> None:
        for name in names:
            self._watched.delete_now(name)

    def close(self) -> None:
        return None

    def _answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return Answer(status, {"Date": _http_date(self._watched.now_ms()), **(headers or {})}, body)


def is_expired(query: str, now_ms: int) -> bool:
    """Whether a URL with this query has lost its force; one without a signature never does."""
    found = _query_of(query)
    if "X-Amz-Date" not in found:
        return False
    return now_ms > (_signed_s(found["X-Amz-Date"]) + int(found["X-Amz-Expires"])) * 1000


@lru_cache(maxsize=64)
def _query_of(text: str) -> Mapping[str, str]:
    """Return the parameters of a query, each of which is there once. A request looks twice or more."""
    pairs = (each.partition("=") for each in text.split("&")) if text else ()
    return {name: unquote_plus(value) if "%" in value or "+" in value else value for name, _, value in pairs}


@lru_cache
def _amz_date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


@lru_cache
def _signed_s(amz_date: str) -> float:
    return datetime.strptime(amz_date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _entry(info: ObjectInfo) -> dict[str, Any]:
    modified = datetime.fromtimestamp(info.modified_ms // 1000, UTC)
    return {"Key": info.key, "Size": info.size, "ETag": f'"{info.etag}"', "LastModified": modified}


def _range_of(data: bytes, wanted: str) -> bytes:
    if not wanted:
        return data
    start, _, end = wanted.removeprefix("bytes=").partition("-")
    return data[-int(end) :] if not start else data[int(start) : int(end) + 1]


def _http_date(ms: int) -> str:
    return _http_date_of(ms // 1000)


@lru_cache
def _http_date_of(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)
