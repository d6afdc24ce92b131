"""Errors as `application/problem+json` (RFC 9457): one table of statuses, beside that of gRPC in
`ledgermq.protocol.status`.

    {"type": "/errors/UNKNOWN_TOPIC", "title": "Not Found", "status": 404, "code": "UNKNOWN_TOPIC",
     "detail": "topic 'orders' does not exist", "retriable": false, "instance": "<request id>"}
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from ledgermq import errors
from ledgermq.errors import LedgerMQError

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_MS = 1000
"""What a retriable error asks for that names no time."""

STATUSES: dict[type[LedgerMQError], int] = {
    LedgerMQError: 500,
    errors.InvalidRequest: 400,
    errors.UnknownTopic: 404,
    errors.UnknownPartition: 404,
    errors.UnknownGroup: 404,
    errors.UnknownSchema: 404,
    errors.UnknownCut: 404,
    errors.IncompatibleSchema: 409,
    errors.MessageTooLarge: 413,
    errors.OffsetOutOfRange: 416,
    errors.TopicExists: 409,
    errors.CutExists: 409,
    errors.GroupNotEmpty: 409,
    errors.CommitGoesBack: 409,
    errors.LegalHold: 409,
    errors.PartitionBusy: 409,
    errors.PublishNotAccepted: 409,
    errors.SubscribeNotAccepted: 409,
    errors.DuplicateMessage: 409,
    errors.BacklogQuotaExceeded: 429,
    errors.Closed: 503,
    errors.UsedElsewhere: 500,
    errors.RetriableError: 503,
    errors.ResourceExhausted: 429,
    errors.StoreFull: 507,
    errors.DeadlineExceeded: 504,
    errors.ProducerError: 500,
    errors.PartitionHeld: 409,
    errors.ProducerFenced: 409,
    errors.TransactionError: 409,
    errors.TransactionUnknown: 404,
    errors.TransactionTooLarge: 413,
    errors.TransactionIdReused: 422,
    errors.TransactionOutcomeUnknown: 500,
    errors.GroupError: 409,
    errors.SearchStopped: 503,
    errors.Unauthorized: 403,
    errors.Unauthenticated: 401,
    errors.StoreError: 500,
}
"""The nearest class up the tree decides."""
_RETRIABLE_STATUSES = (429, 503, 507)
REFUSALS: Mapping[str, int] = {
    "MALFORMED": 400,
    "INVALID_REQUEST": 400,
    "FOREIGN_ORIGIN": 403,
    "NOT_BY_COOKIE": 403,
    "OTHER_CALLER": 403,
    "READ_ONLY": 403,
    "NO_SUCH_LETTER": 404,
    "NO_SUCH_MESSAGE": 404,
    "NO_SUCH_PATH": 404,
    "METHOD_NOT_ALLOWED": 405,
    "NOT_ACCEPTABLE": 406,
    "REQUEST_TIMEOUT": 408,
    "BODY_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "OTHER_HOST": 421,
    "OTHER_GROUP": 409,
    "OTHER_OFFSET": 409,
    "OTHER_TOPIC": 409,
    "TRANSACTION_RUNNING": 409,
    "IDEMPOTENCY_KEY_REUSED": 422,
    "IDEMPOTENCY_NOT_AVAILABLE": 422,
    "TOO_MANY_KEYS": 429,
    "TOO_MANY_TRANSACTIONS": 429,
    "HEADER_TOO_LARGE": 431,
    "INTERNAL": 500,
    "OVERLOADED": 503,
}
"""Codes of the gateway's own refusals, and their statuses."""


class Problem(Exception):
    """A refusal of the gateway. `code`: one of `REFUSALS`, or of `ledgermq.errors`. `more`: further members of
    the document.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int | None = None,
        retry_after_ms: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = REFUSALS[code] if status is None else status
        self.retry_after_ms = retry_after_ms
        self._headers = headers
        self.more = dict(more or {})

    @property
    def retriable(self) -> bool:
        return self.status in _RETRIABLE_STATUSES or self.retry_after_ms is not None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        found = self._headers
        if self.status == HTTPStatus.UNAUTHORIZED:
            found = (*found, ("WWW-Authenticate", 'Bearer realm="ledgermq"'))
        if self.retriable:
            found = (*found, ("Retry-After", str(max(1, -(-self.wait_ms // 1000)))))
        return found

    @property
    def wait_ms(self) -> int:
        return RETRY_AFTER_MS if self.retry_after_ms is None else self.retry_after_ms

    def document(self, request_id: str = "") -> bytes:
        found: dict[str, Any] = {
            "type": f"/errors/{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "retriable": self.retriable,
        }
        if self.retriable:
            found["retry_after_ms"] = self.wait_ms
        if request_id:
            found["instance"] = request_id
        return msgspec.json.encode(found | self.more)


def status_of(error: LedgerMQError) -> int:
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: LedgerMQError, more: Mapping[str, Any] | None = None) -> Problem:
    """Return the problem that stands for an error of the cluster."""
    wait_ms = error.retry_after_ms
    if error.retriable and wait_ms is None:
        wait_ms = RETRY_AFTER_MS
    named = _named(error)
    return Problem(named.code, error.message, status=status_of(error), retry_after_ms=wait_ms, more=more)


def _named(error: LedgerMQError) -> type[LedgerMQError]:
    """Return the nearest class that has a name on the wire."""
    found: type[LedgerMQError] = next(kind for kind in type(error).__mro__ if kind in errors.BY_CODE.values())
    return errors.Unavailable if found is errors.RetriableError else found
