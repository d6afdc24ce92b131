"""`S3Wire`: send requests for objects of one bucket by one of several libraries, each exactly once;
and map S3 answers to the contract's errors.

Owns what these clients have in common: the interface, the bounds on waiting, and the two exceptions that
a client raises instead of success. A `name` is the whole name in the bucket. Knows no fences
and no clock. No client maps an answer to an error: `ledgermq_ledger.object_store.s3.store` does, by
`contract_errors`, so all clients agree. The only place that uses S3's status codes:

404 NoSuchKey → ObjectMissing                404 NoSuchBucket, 301, 501      → StoreUnusable
412           → AlreadyExists                401, 403, expired token, clock   → Unauthorized
507, full     → StoreFull
429, 503      → StoreThrottled               409, 408, 5xx, no answer         → StoreUncertain
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable, Unauthorized
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectMissing, StoreThrottled, StoreUncertain

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


class Signing(Protocol):
    """What obstore does not do: URLs, pages of lists, deletions, the clock. Raises as `S3Wire` does."""

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]: ...

    async def delete(self, names: Sequence[str]) -> None: ...

    async def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]:
        """Return URLs that create these objects, each if it is absent, and that the store refuses
        after `life_s`.
        """

    async def sign_get(self, name: str, life_s: int) -> str | None:
        """Return a URL that allows its holder to read the object for `life_s`; None: it would cost a request."""

    def signed_ms(self, url: str, life_ms: int) -> int:
        """Return the time from which the store counts the life of a URL of `sign_creates`, to the second."""

    async def put_signed(self, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None: ...

    async def clock(self) -> Answer:
        """Return an answer that shows the store's time in its `Date`, whatever its status."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def put_s_max(size_bytes: int) -> float:
    """Return the time limit of a whole PUT, for clients that do not bound its steps: as long as all
    steps together may take.
    """
    return SILENCE_S_MAX * (2 + size_bytes // PIECE_BYTES)


# What an answer means.

_THROTTLED = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "ThrottlingException", "RequestLimitExceeded"}
    | {"rateLimitExceeded", "userRateLimitExceeded"}  # Google may say so with 403
)
_TIMED_OUT = frozenset({"RequestTimeout", "IncompleteBody", "OperationAborted", "ConditionalRequestConflict"})
_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AuthorizationHeaderMalformed",
    }
)
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture", "RequestExpired"})
_SKEWED_SIGNED = re.compile(r"not valid yet|not yet valid|has expired", re.IGNORECASE)
"""What is said of a presigned URL, with AccessDenied.

Ours are made a moment before they are used.
"""
_FULL = frozenset({"XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "StorageFull"})
_NO_OBJECT = frozenset({"", "NoSuchKey", "BlobNotFound"})
_EXISTS = frozenset({"BlobAlreadyExists"})
"""Azure's answer to `If-None-Match: *`, with status 409."""
_HELD = frozenset(
    {
        *("BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold", "ContainerDisabled"),
        *("RetentionPolicyNotMet", "retentionPolicyNotMet", "ObjectUnderActiveHold", "objectUnderActiveHold"),
    }
)
_FOREIGN = "(not in S3's language)"
_SECONDS = re.compile(r"[0-9]{1,9}\Z")
_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_SERVER_TIME = re.compile(rb"<ServerTime>([^<]{1,40})</ServerTime>")
_DETAIL = re.compile(rb"<AuthenticationErrorDetail>([^<]{1,500})</AuthenticationErrorDetail>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,500})</Message>")


def refused(status: int, headers: Mapping[str, str], body: bytes) -> S3Refused:
    """`headers` have to be case-insensitive; `body` is S3's XML, or anything."""
    code, message = _first(_CODE, body), _first(_MESSAGE, body)
    if detail := _first(_DETAIL, body):
        message = f"{message} ({detail})"
    if body and not code:
        code = _FOREIGN
    answer = S3Refused(status, code, message, retry_after_ms(headers.get("Retry-After", "")))
    if is_skewed(answer):
        answer.ahead_ms = ahead_ms(headers.get("Date", "")) or _ahead_ms_by(_first(_SERVER_TIME, body))
    return answer


def retry_after_ms(text: str) -> int | None:
    """Of the header; None where it is not a number of seconds."""
    return int(text) * 1000 if _SECONDS.match(text) else None


def is_skewed(answer: S3Refused) -> bool:
    """Whether the store refuses because our clock is not its clock."""
    return answer.code in _SKEWED or (
        answer.code == "AccessDenied" and _SKEWED_SIGNED.search(answer.message) is not None
    )


def ahead_ms(date: str) -> int | None:
    """How far our clock is ahead of the store's, whose answer has just come with this `Date`; None
    where that says no time.
    """
    try:
        return int((time.time() - parsedate_to_datetime(date).timestamp()) * 1000)
    except ValueError:
        return None


def _ahead_ms_by(server_time: str) -> int | None:
    """The same by the time that AWS writes into the body."""
    try:
        return int((time.time() - datetime.fromisoformat(server_time).timestamp()) * 1000)
    except ValueError:
        return None


def date_ms(text: str) -> int:
    """An HTTP date. Raises StoreUnusable."""
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError as error:
        raise StoreUnusable(f"the object store's Date header is not a date: {text!r}") from error


@contextmanager
def contract_errors(key: str, *, puts: bool = False) -> Iterator[None]:
    """What a request for `key` raised, as an error of the contract.

    `puts`: "not found" is then said of the bucket.
    """
    try:
        yield
    except S3Refused as answer:
        error = error_of(key, answer)
        if puts and answer.status == 404:
            raise StoreUnusable(f"{key}: no such bucket, or no S3 server: {error}", object_key=key) from None
        raise error from None
    except S3Silent as silence:
        raise StoreUncertain(
            f"{key}: no answer from the object store ({silence.reason})", object_key=key
        ) from silence.__cause__
    except S3RangesIgnored:
        raise StoreUnusable(
            f"{key}: the object store ignores Range headers, which LedgerMQ needs", object_key=key
        ) from None


def error_of(key: str, answer: S3Refused) -> LedgerMQError:
    status, code = answer.status, answer.code
    said = f"{key}: the object store answered {status} {code} {answer.message}".rstrip()
    if status in (429, 503) or code in _THROTTLED:
        return StoreThrottled(said, object_key=key, retry_after_ms=answer.retry_after_ms)
    if code in _FULL or status == 507:
        return StoreFull(f"no space is left: {said}", object_key=key)
    if status == 404 and code in _NO_OBJECT:
        return ObjectMissing(f"no object {key}", object_key=key)
    if status == 412 or code in _EXISTS:
        return AlreadyExists(f"object {key} exists", object_key=key)
    if is_skewed(answer):
        return Unauthorized(
            f"{_clock_is(answer.ahead_ms)}: set this machine's clock, best by NTP, and restart; {said}",
            object_key=key,
        )
    if code in _HELD:
        return StoreUnusable(said, object_key=key)
    if status in (401, 403) or code in _CREDENTIALS:
        return Unauthorized(f"wrong or insufficient credentials: {said}", object_key=key)
    if code in _TIMED_OUT or status in (307, 408, 409) or (status >= 500 and status != 501):
        return StoreUncertain(said, object_key=key)
    return StoreUnusable(said, object_key=key)


def _clock_is(ahead: int | None) -> str:
    if ahead is None:
        return "this machine's clock and the object store's are too far apart"
    minutes, seconds = divmod(abs(ahead) // 1000, 60)
    far = f"{minutes} min" if minutes else f"{seconds} s"
    return f"this machine's clock is {far} {'ahead of' if ahead > 0 else 'behind'} the object store's"


def is_expired(answer: S3Refused) -> bool:
    """Whether the store refuses a presigned URL because its life is over. Azure says so in its own words."""
    text = f"{answer.code} {answer.message}".lower()
    return answer.status in (400, 403) and ("expired" in text or "not valid in the specified time frame" in text)


def _first(pattern: re.Pattern[bytes], body: bytes) -> str:
    found = pattern.search(body[:4096])
    return found[1].decode("utf-8", "replace") if found else ""
