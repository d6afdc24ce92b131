"""What an S3 answer means in the contract's errors: the one place that knows its status codes.

404 NoSuchKey → ObjectMissing                404 NoSuchBucket, 301, 501 → StoreUnusable
412           → AlreadyExists                401, 403, expired token          → Unauthorized
507, full     → StoreFull
429, 503      → StoreThrottled               409, 408, 5xx, no answer         → StoreUncertain
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ledger.object_store.contract import AlreadyExists, ObjectMissing, StoreThrottled, StoreUncertain
from ledger.object_store.s3_wire import S3RangesIgnored, S3Refused, S3Silent
from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable, Unauthorized

_THROTTLED = frozenset({"SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "ThrottlingException", "RequestLimitExceeded"})
_TIMED_OUT = frozenset({"RequestTimeout", "IncompleteBody", "OperationAborted", "ConditionalRequestConflict"})
_CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed"}
)
_FULL = frozenset({"XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "StorageFull"})
_NO_OBJECT = frozenset({"", "NoSuchKey"})
_FOREIGN = "(not in S3's language)"
_SECONDS = re.compile(r"[0-9]{1,9}\Z")
_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,500})</Message>")


def refused(status: int, headers: Mapping[str, str], body: bytes) -> S3Refused:
    """`headers` have to be case-insensitive; `body` is S3's XML, or anything."""
    code, message = _first(_CODE, body), _first(_MESSAGE, body)
    if body and not code:
        code = _FOREIGN
    return S3Refused(status, code, message, retry_after_ms(headers.get("Retry-After", "")))


def retry_after_ms(text: str) -> int | None:
    """Of the header; None where it is not a number of seconds."""
    return int(text) * 1000 if _SECONDS.match(text) else None


@contextmanager
def contract_errors(key: str, *, puts: bool = False) -> Iterator[None]:
    """What a request for `key` raised, as an error of the contract. `puts`: "not found" is then said of the bucket."""
    try:
        yield
    except S3Refused as answer:
        error = error_of(key, answer)
        if puts and answer.status == 404:
            raise StoreUnusable(f"{key}: no such bucket, or no S3 server: {error}", object_key=key) from None
        raise error from None
    except S3Silent as silence:
        raise StoreUncertain(f"{key}: no answer from the object store ({silence.reason})", object_key=key) from silence.__cause__
    except S3RangesIgnored:
        raise StoreUnusable(f"{key}: the object store ignores ranges", object_key=key) from None


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
    if status in (401, 403) or code in _CREDENTIALS:
        return Unauthorized(f"wrong or insufficient credentials: {said}", object_key=key)
    if code in _TIMED_OUT or status in (307, 408, 409) or (status >= 500 and status != 501):
        return StoreUncertain(said, object_key=key)
    return StoreUnusable(said, object_key=key)


def is_expired(answer: S3Refused) -> bool:
    """Whether the store refuses a presigned URL because its life is over."""
    return answer.status in (400, 403) and "expired" in f"{answer.code} {answer.message}".lower()


def _first(pattern: re.Pattern[bytes], body: bytes) -> str:
    found = pattern.search(body[:4096])
    return found[1].decode("utf-8", "replace") if found else ""
