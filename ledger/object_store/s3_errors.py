"""What an S3 answer means in the contract's errors: the one place that knows its status codes.

404 NoSuchKey → ObjectMissing                404 NoSuchBucket, 301, 501, full → StoreUnusable
412           → AlreadyExists                401, 403, expired token          → Unauthorized
429, 503      → StoreThrottled               409, 408, 5xx, no answer         → StoreUncertain
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ledger.object_store.contract import AlreadyExists, ObjectMissing, StoreThrottled, StoreUncertain
from ledgermq.errors import LedgerMQError, StoreUnusable, Unauthorized

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


def error_of_answer(what: str, status: int, headers: Mapping[str, str], body: bytes) -> LedgerMQError:
    """`headers` have to be case-insensitive; `body` is S3's XML, or anything."""
    code, message = _first(_CODE, body), _first(_MESSAGE, body)
    if body and not code:
        code = _FOREIGN
    retry_after = headers.get("Retry-After", "")
    return error_of(what, status, code, message, int(retry_after) * 1000 if _SECONDS.match(retry_after) else None)


def error_of(what: str, status: int, code: str, message: str, retry_after_ms: int | None = None) -> LedgerMQError:
    said = f"{what}: the object store answered {status} {code} {message}".rstrip()
    if status in (429, 503) or code in _THROTTLED:
        return StoreThrottled(said, object_key=what, retry_after_ms=retry_after_ms)
    if code in _FULL or status == 507:
        return StoreUnusable(f"no space is left: {said}", object_key=what)
    if status == 404 and code in _NO_OBJECT:
        return ObjectMissing(f"no object {what}", object_key=what)
    if status == 412:
        return AlreadyExists(f"object {what} exists", object_key=what)
    if status in (401, 403) or code in _CREDENTIALS:
        return Unauthorized(f"wrong or insufficient credentials: {said}", object_key=what)
    if code in _TIMED_OUT or status in (307, 408, 409) or (status >= 500 and status != 501):
        return StoreUncertain(said, object_key=what)
    return StoreUnusable(said, object_key=what)


def is_expired(status: int, body: bytes) -> bool:
    """Whether the store refuses a presigned URL because its life is over."""
    return status in (400, 403) and "expired" in f"{_first(_CODE, body)} {_first(_MESSAGE, body)}".lower()


def _first(pattern: re.Pattern[bytes], body: bytes) -> str:
    found = pattern.search(body[:4096])
    return found[1].decode("utf-8", "replace") if found else ""
