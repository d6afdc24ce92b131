"""Convert errors to and from the wire: `ledgermq.errors` as `pb.Error` messages and gRPC statuses.
No other module does this.

A failed call ends with the status code below, the error's text as details, and the whole error, as
a serialized `pb.Error`, in the trailing metadata `ledgermq-error-bin`. A status without that
metadata came from gRPC itself, from a proxy or from some other server. Where such a status may
mean a line that broke during the call, what was asked for may have been done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq import errors
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import DETAILS_CHARS_MAX, ERROR_TEXT_CHARS_MAX

ERROR_KEY = "ledgermq-error-bin"
RETRY_AFTER_MS_MAX = 24 * 3600 * 1000
"""Largest retry_after_ms that is sent, because a store may request any number."""

NOT_CONNECTED = "failed to connect to all addresses"
"""How gRPC begins its text when it cannot make a connection."""

Trailers = Iterable[tuple[str, str | bytes]]

# The nearest class up the tree decides the status.
_CODES: dict[type[LedgerMQError], grpc.StatusCode] = {
    LedgerMQError: grpc.StatusCode.INTERNAL,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownTopic: grpc.StatusCode.NOT_FOUND,
    errors.UnknownPartition: grpc.StatusCode.NOT_FOUND,
    errors.TopicExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.PublishNotAccepted: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SubscribeNotAccepted: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DuplicateMessage: grpc.StatusCode.ALREADY_EXISTS,
    errors.BacklogQuotaExceeded: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LegalHold: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PartitionBusy: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RetriableError: grpc.StatusCode.UNAVAILABLE,
    errors.NotOwner: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TopicBeingDeleted: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ProducerError: grpc.StatusCode.ABORTED,
    errors.OutcomeUnknown: grpc.StatusCode.UNKNOWN,
    errors.PartitionHeld: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProducerFenced: grpc.StatusCode.ABORTED,
    errors.TransactionError: grpc.StatusCode.ABORTED,
    errors.TransactionUnknown: grpc.StatusCode.NOT_FOUND,
    errors.TransactionIdReused: grpc.StatusCode.ALREADY_EXISTS,
    errors.TransactionOutcomeUnknown: grpc.StatusCode.UNKNOWN,
    errors.UnknownGroup: grpc.StatusCode.NOT_FOUND,
    errors.UnknownSchema: grpc.StatusCode.NOT_FOUND,
    errors.UnknownCut: grpc.StatusCode.NOT_FOUND,
    errors.CutExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.IncompatibleSchema: grpc.StatusCode.FAILED_PRECONDITION,
    errors.GroupNotEmpty: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CommitGoesBack: grpc.StatusCode.FAILED_PRECONDITION,
    errors.GroupError: grpc.StatusCode.ABORTED,
    errors.Unauthorized: grpc.StatusCode.PERMISSION_DENIED,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.StoreError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DataDamaged: grpc.StatusCode.DATA_LOSS,
}

# The error that a status without LedgerMQ's metadata means. UNKNOWN, INTERNAL and RESOURCE_EXHAUSTED, too, are what
# libraries make of a stream that a proxy cut off or reset: the request may have arrived. `ResourceExhausted` would say
# that nothing was stored, which only a broker knows.
_FOREIGN: dict[grpc.StatusCode, type[LedgerMQError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.UNKNOWN: errors.Unavailable,
    grpc.StatusCode.INTERNAL: errors.Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Unauthorized,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: errors.InvalidRequest,
}


# Errors that older clients do not know, and those that are sent in their place. Clients that know
# them read `exact_code`.
_SENT_AS: dict[type[LedgerMQError], type[LedgerMQError]] = {
    errors.Unauthenticated: errors.Unauthorized,
    errors.QuotaExceeded: errors.ResourceExhausted,
    errors.ProducerEpochFenced: errors.UnknownProducer,
    errors.SequencePassed: errors.OutOfOrderSequence,
}


def status_code(error: LedgerMQError) -> grpc.StatusCode:
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def error_to_proto(error: LedgerMQError) -> pb.Error:
    published = _published(error)
    sent_as = _SENT_AS.get(published)
    return pb.Error(
        code=(sent_as or published).code,
        exact_code="" if sent_as is None else published.code,
        message=_encodable(error.message[:ERROR_TEXT_CHARS_MAX]),
        retry_after_ms=min(max(0, error.retry_after_ms or 0), RETRY_AFTER_MS_MAX),
        owner=_encodable(error.owner or ""),
        object_key=_encodable(error.object_key or ""),
        not_stored=error.not_stored,
        limit=error.limit if isinstance(error, errors.QuotaExceeded) else "",
        end=error.end if isinstance(error, errors.ConditionFailed) and error.end >= 0 else None,
    )


def _encodable(text: str) -> str:
    """Return text that can be sent: an error may name a file whose name is not valid text."""
    return text.encode(errors="backslashreplace").decode()


def _published(error: LedgerMQError) -> type[LedgerMQError]:
    """Return the nearest published class: internal errors (of a store, for example)
    are not part of the contract.
    """
    published: type[LedgerMQError] = next(kind for kind in type(error).__mro__ if kind in errors.BY_CODE.values())
    if published is errors.RetriableError and type(error) is not published:
        return errors.Unavailable
    return published


def error_from_proto(message: pb.Error) -> LedgerMQError:
    error = errors.from_code(
        message.exact_code if message.exact_code in errors.BY_CODE else message.code,
        message.message,
        retry_after_ms=message.retry_after_ms or None,
        owner=message.owner or None,
        object_key=message.object_key or None,
    )
    error.not_stored = message.not_stored
    if isinstance(error, errors.QuotaExceeded):
        error.limit = message.limit
    if isinstance(error, errors.ConditionFailed) and message.HasField("end"):
        error.end = message.end
    return error


def trailing_metadata(error: LedgerMQError) -> tuple[tuple[str, str | bytes], ...]:
    return ((ERROR_KEY, error_to_proto(error).SerializeToString()),)


async def abort(context: grpc.aio.ServicerContext[bytes, bytes], error: LedgerMQError) -> NoReturn:
    """End a call on the server with `error`. Always raises."""
    await context.abort(status_code(error), _encodable(error.message[:DETAILS_CHARS_MAX]), trailing_metadata(error))
    raise AssertionError("abort() returned")


def error_from_rpc(error: grpc.aio.AioRpcError, address: str) -> LedgerMQError:
    """Return the error of a failed call to the broker at `address`."""
    return error_from_status(
        error.code(), error.details() or "", cast(Trailers, error.trailing_metadata() or ()), address
    )


def error_from_status(code: grpc.StatusCode, details: str, trailing: Trailers, address: str) -> LedgerMQError:
    for key, value in trailing:
        if key == ERROR_KEY and isinstance(value, bytes):
            message = pb.Error()
            try:
                message.ParseFromString(value)
            except DecodeError:
                break
            return error_from_proto(message)
    text = f"{address}: {_plain(details) or code.name}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        text = f"{address} is not a LedgerMQ broker, or its release is older and has no such call ({details})"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return errors.MessageTooLarge(text)
    error = _FOREIGN.get(code, LedgerMQError)(text)
    error.not_stored = details.startswith(NOT_CONNECTED)  # nothing of the call was sent
    return error


BROKEN_OFF = ("Internal error from Core", "Socket closed", "Connection reset")
"""Texts of gRPC about a connection that was there and ended, as by the end of the broker's process."""


def _plain(details: str) -> str:
    """Shorten gRPC's text about an unreachable broker: it repeats the address, and adds internal
    parts and the system's error number.
    """
    if details in BROKEN_OFF:
        return "the connection broke off during the call; the broker may have ended"
    if not details.startswith(NOT_CONNECTED):
        return details
    return "connection refused" if "Connection refused" in details else details.rpartition("last error: ")[2]
