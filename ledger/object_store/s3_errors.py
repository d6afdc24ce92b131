"""What an S3 answer means in the contract's errors: the one place that knows its status codes.

404 NoSuchKey → ObjectMissing                404 NoSuchBucket, 301, 501      → StoreUnusable
412           → AlreadyExists                401, 403, expired token, clock   → Unauthorized
507, full     → StoreFull
429, 503      → StoreThrottled               409, 408, 5xx, no answer         → StoreUncertain
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime

from ledger.object_store.contract import AlreadyExists, ObjectMissing, StoreThrottled, StoreUncertain
from ledger.object_store.s3_wire import S3RangesIgnored, S3Refused, S3Silent
from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable, Unauthorized

_THROTTLED = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "ThrottlingException", "RequestLimitExceeded"}
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
_NO_OBJECT = frozenset({"", "NoSuchKey"})
_FOREIGN = "(not in S3's language)"
_SECONDS = re.compile(r"[0-9]{1,9}\Z")
_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_SERVER_TIME = re.compile(rb"<ServerTime>([^<]{1,40})</ServerTime>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,500})</Message>")


def refused(status: int, headers: Mapping[str, str], body: bytes) -> S3Refused:
    """`headers` have to be case-insensitive; `body` is S3's XML, or anything."""
    code, message = _first(_CODE, body), _first(_MESSAGE, body)
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
    if status == 412:
        return AlreadyExists(f"object {key} exists", object_key=key)
    if is_skewed(answer):
        return Unauthorized(
            f"{_clock_is(answer.ahead_ms)}: set this machine's clock, best by NTP, and restart; {said}",
            object_key=key,
        )
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
    """Whether the store refuses a presigned URL because its life is over."""
    return answer.status in (400, 403) and "expired" in f"{answer.code} {answer.message}".lower()


def _first(pattern: re.Pattern[bytes], body: bytes) -> str:
    found = pattern.search(body[:4096])
    return found[1].decode("utf-8", "replace") if found else ""
