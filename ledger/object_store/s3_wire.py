"""`S3Wire`: send requests for objects of one bucket by one of several libraries, each exactly once.

It owns what these clients have in common: the interface, the bounds on waiting, and the two
exceptions for an answer other than success, and for none. `ledger.object_store.s3` gives the
answers their meaning, so all clients agree. A `name` is the whole name in the bucket. Knows no keys
of LedgerMQ, no fences and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ledger.object_store.contract import Buffer

CONNECT_S_MAX = 5.0
SILENCE_S_MAX = 20.0
"""Longest wait for one step of a request: to send a piece of the body, or to receive the answer."""
PIECE_BYTES = 1 << 20
READERS_MAX = 32
WRITERS_MAX = 32
"""Connections that are kept, and the number of requests in flight if each takes a thread."""

Part = TypeVar("Part", bytes, Buffer)
"""The type in which a client returns a range, or the end of an object."""


@dataclass(eq=False)
class S3Refused(Exception):
    """An answer other than the expected one. `code` and `message` are S3's own, empty if the body
    is not S3's XML.

    `ahead_ms`: if the store refuses because of the time: how far this machine's clock is ahead of
    the store's, if known.
    """

    status: int
    code: str
    message: str
    retry_after_ms: int | None = None
    ahead_ms: int | None = None


@dataclass(eq=False)
class S3Silent(Exception):
    """No answer, or half of one: the request may or may not have had its effect.

    `reason` names no secret.
    """

    reason: str


class S3RangesIgnored(Exception):
    """The store sent the whole object instead of the requested part."""


@dataclass(frozen=True, slots=True)
class S3Object:
    size: int
    etag: str
    modified_ms: int


class S3Wire(Protocol):
    """Cancelling abandons a request.

    Raises S3Refused, S3Silent, Unauthorized (no credentials), StoreUnusable (no bucket, a
    certificate that is not trusted).
    """

    async def put(self, name: str, buffers: Sequence[Buffer], *, only_if_absent: bool) -> None:
        """Send one PUT, never in parts. `only_if_absent`: with `If-None-Match: *`."""

    async def get(self, name: str) -> bytes: ...

    async def get_range(self, name: str, start: int, length: int) -> Buffer:
        """Read part of an object; `length` is at least 1. Raises S3RangesIgnored."""

    async def get_suffix(self, name: str, length: int) -> bytes:
        """Read part of an object; `length` is at least 1. Raises S3RangesIgnored."""

    async def head(self, name: str) -> S3Object: ...

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Up to 1,000 entries (Key, Size, ETag, LastModified) and the token of the next page."""

    async def delete(self, names: Sequence[str]) -> None:
        """Delete at most 1,000 objects in one request. Raises the error of the first one that
        failed.
        """

    async def close(self) -> None: ...


def put_s_max(size_bytes: int) -> float:
    """Return the time limit of a whole PUT, for clients that do not bound its steps: as long as all
    steps together may take.
    """
    return SILENCE_S_MAX * (2 + size_bytes // PIECE_BYTES)
