"""`S3Wire`: requests for objects of one bucket, as one of several libraries sends them, each sent
exactly once.

Owns what these clients have in common: the seam, the bounds on waiting, and the two exceptions that
tell what came instead of success, raw. What an answer means is not theirs to say:
`ledger.object_store.s3` maps it, so that all of them mean the same. A `name` is the whole name in
the bucket. Knows no keys of ours, no fences and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ledger.object_store.contract import Buffer

CONNECT_S_MAX = 5.0
SILENCE_S_MAX = 20.0
"""Longest wait for one step of a request: a piece of the body to leave, the answer to come."""
PIECE_BYTES = 1 << 20
READERS_MAX = 32
WRITERS_MAX = 32
"""Connections that are kept, and requests under way where each takes a thread."""

Part = TypeVar("Part", bytes, Buffer)
"""What a client hands over of a range, or of the end of an object."""


@dataclass(eq=False)
class S3Refused(Exception):
    """An answer that is not what was asked for. `code` and `message` are S3's own, empty where the
    body is not in its language.

    `ahead_ms`: where the store refuses because of the time: how far our clock is ahead of its, if
    that is known.
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
    """The whole object came where a part of it was asked for."""


@dataclass(frozen=True, slots=True)
class S3Object:
    size: int
    etag: str
    modified_ms: int


class S3Wire(Protocol):
    """Cancelling gives a request up.

    Raises S3Refused, S3Silent, Unauthorized (no credentials), StoreUnusable (no bucket, a
    certificate that is not trusted).
    """

    async def put(self, name: str, buffers: Sequence[Buffer], *, only_if_absent: bool) -> None:
        """One PUT, never in parts. `only_if_absent`: with `If-None-Match: *`."""

    async def get(self, name: str) -> bytes: ...

    async def get_range(self, name: str, start: int, length: int) -> Buffer:
        """`length` is at least 1. Raises S3RangesIgnored."""

    async def get_suffix(self, name: str, length: int) -> bytes:
        """`length` is at least 1. Raises S3RangesIgnored."""

    async def head(self, name: str) -> S3Object: ...

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Up to 1,000 entries (Key, Size, ETag, LastModified) and the token of the next page."""

    async def delete(self, names: Sequence[str]) -> None:
        """At most 1,000, in one request. Raises what the first one that failed says."""

    async def close(self) -> None: ...


def put_s_max(size_bytes: int) -> float:
    """For clients that bound a whole PUT and not its steps: as long as all steps together may take."""
    return SILENCE_S_MAX * (2 + size_bytes // PIECE_BYTES)
