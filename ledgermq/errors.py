"""Every error that LedgerMQ raises or sends, as one small tree. Independent of gRPC, HTTP and any store:
`ledgermq.protocol.status` maps codes to the wire.

    LedgerMQError
    ├── InvalidRequest            fix the input; the same call fails again
    │   ├── InvalidTopicName, InvalidConfig, InvalidRecord, CorruptFrame, MessageTooLarge
    │   │   └── InvalidFilter     an InvalidConfig: the text of a filter cannot be read; it names the place
    │   │       └── UnknownFunction   the broker has no filter function of this name
    │   ├── UnknownTopic, UnknownPartition, TopicExists, OffsetOutOfRange
    │   ├── PublishNotAccepted, SubscribeNotAccepted, UnknownCut, CutExists
    │   ├── DuplicateMessage      its id was stored within the window of its topic; producers turn it into a result
    │   ├── ConditionFailed       the partition ends elsewhere than `expect_end` says: read on, decide again
    │   ├── BacklogQuotaExceeded  a consumer group is too far behind, and the topic refuses records then
    │   ├── BadValue              a message's value cannot be read; `record` is the message as it is stored
    │   ├── LegalHold             records of the topic cannot be deleted while it is held
    │   ├── PartitionBusy         something keeps the partition in its bundle, so it cannot move now
    │   ├── Closed                the client, or the object of it, is closed: make another one
    │   ├── UsedElsewhere         the client belongs to another process or event loop
    │   └── InvalidGroupName, UnknownGroup, GroupNotEmpty, CommitGoesBack, UnknownSchema, IncompatibleSchema
    ├── RetriableError            the same call may succeed later (retry_after_ms says when)
    │   ├── NotOwner              send the request to the broker at `owner` instead
    │   ├── Unavailable           no broker, or no store, answers at present
    │   │   └── TlsFailed         broker and client do not agree on TLS; the text says what to change
    │   ├── TopicBeingDeleted     the name cannot be used again yet
    │   ├── ResourceExhausted     a limit was reached; nothing was accepted
    │   │   ├── QuotaExceeded     the caller's quota, or its share of a table, is used up; others go on
    │   │   └── StoreFull         the store has no room: nothing was stored, reads still work
    │   └── DeadlineExceeded      the caller's time limit was reached
    │       └── NoReply           no reply to a request came in time; it may be handled nevertheless
    ├── ProducerError             the producer's session has ended; open a new one
    │   ├── UnknownProducer, OutOfOrderSequence
    │   │   ├── ProducerEpochFenced   an UnknownProducer: a newer session of its id has written
    │   │   └── SequencePassed    an OutOfOrderSequence: stored before, at an offset that is not remembered
    │   └── OutcomeUnknown        the record may or may not be stored; never retried automatically
    ├── PartitionHeld             an exclusive producer has the partition for itself; nothing was stored
    ├── ProducerFenced            an exclusive producer lost its partition: stop; nothing was stored
    ├── TransactionError          the transaction cannot continue
    │   ├── TransactionFenced     another process uses the transactional id now: stop
    │   ├── TransactionAborted    nothing of it is or becomes visible: run the transaction again
    │   ├── TransactionTooLarge   a bound of one transaction was reached: abort it, and split the work
    │   ├── TransactionUnknown    no such transaction, or it was forgotten
    │   ├── TransactionIdReused   the id has committed other records: nothing was written; use another id
    │   └── TransactionOutcomeUnknown   it may or may not be committed: ask `transactions.outcome`
    ├── GroupError                the member's assumptions about its group are outdated
    │   ├── UnknownMember         removed after it sent no heartbeat, or never joined: join again
    │   ├── StaleAssignment       the partition is not this member's under this epoch: nothing was committed
    │   ├── StaticIdInUse         another live member has the same instance id
    │   └── FilterConflict        the group's members have another filter
    ├── SearchStopped             a look-up reached a bound; `rest` says where to go on
    ├── Unauthorized              the principal may not do this; with `object_key`: the store refuses the broker
    │   └── Unauthenticated       the credential is missing, wrong, expired or revoked: give another one
    └── StoreError                the bucket itself
        ├── DataDamaged           an object fails its checks; `object_key` names it
        ├── FormatNotSupported    written by another format version
        └── StoreUnusable         ignores create-if-absent, is read-only, does not exist
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict, Unpack


class ErrorDetails(TypedDict, total=False):
    """What an error may have besides its text: see `LedgerMQError`."""

    retry_after_ms: int | None
    owner: str | None
    object_key: str | None


class LedgerMQError(Exception):
    """Base class of all errors. `code` is stable on the wire; `retriable`: the same call may succeed later."""

    code: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_ms: int | None = None,
        owner: str | None = None,
        object_key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.owner = owner
        self.object_key = object_key
        self.not_stored = False
        """Of a batch that was refused, or never sent: this attempt has certainly stored nothing of it."""


class InvalidRequest(LedgerMQError):
    code = "INVALID_REQUEST"


class InvalidTopicName(InvalidRequest):
    code = "INVALID_TOPIC_NAME"


class InvalidConfig(InvalidRequest):
    code = "INVALID_CONFIG"


class InvalidFilter(InvalidConfig):
    code = "INVALID_FILTER"


class UnknownFunction(InvalidFilter):
    code = "UNKNOWN_FUNCTION"


class InvalidRecord(InvalidRequest):
    code = "INVALID_RECORD"


class CorruptFrame(InvalidRequest):
    code = "CORRUPT_FRAME"


class MessageTooLarge(InvalidRequest):
    code = "MESSAGE_TOO_LARGE"


class UnknownTopic(InvalidRequest):
    code = "UNKNOWN_TOPIC"


class UnknownPartition(InvalidRequest):
    code = "UNKNOWN_PARTITION"


class TopicExists(InvalidRequest):
    code = "TOPIC_EXISTS"


class OffsetOutOfRange(InvalidRequest):
    code = "OFFSET_OUT_OF_RANGE"


class PublishNotAccepted(InvalidRequest):
    code = "PUBLISH_NOT_ACCEPTED"


class SubscribeNotAccepted(InvalidRequest):
    code = "SUBSCRIBE_NOT_ACCEPTED"


class DuplicateMessage(InvalidRequest):
    """Records of a batch have ids that were stored within the window of their topic; nothing of the batch is stored.
    `stored`: (row, offset of the original). `repeated`: (row, row of the same batch with the same id).
    """

    code = "DUPLICATE_MESSAGE"
    stored: Sequence[tuple[int, int]] = ()
    repeated: Sequence[tuple[int, int]] = ()


class ConditionFailed(InvalidRequest):
    """Not stored: the partition ends at `end`, durably, and not at `expect_end`. Read up to it, and decide again."""

    code = "CONDITION_FAILED"
    end: int = -1


class BacklogQuotaExceeded(InvalidRequest):
    code = "BACKLOG_QUOTA_EXCEEDED"


class BadValue(InvalidRequest):
    code = "BAD_VALUE"

    record: Any = None
    """The message (`ledgermq.Message`) as it is stored, whose value is bytes."""


class LegalHold(InvalidRequest):
    code = "LEGAL_HOLD"


class PartitionBusy(InvalidRequest):
    code = "PARTITION_BUSY"


class Closed(InvalidRequest):
    code = "CLOSED"


class UsedElsewhere(InvalidRequest):
    code = "USED_ELSEWHERE"


class InvalidGroupName(InvalidRequest):
    code = "INVALID_GROUP_NAME"


class UnknownGroup(InvalidRequest):
    code = "UNKNOWN_GROUP"


class UnknownSchema(InvalidRequest):
    code = "UNKNOWN_SCHEMA"


class IncompatibleSchema(InvalidRequest):
    code = "INCOMPATIBLE_SCHEMA"


class UnknownCut(InvalidRequest):
    code = "UNKNOWN_CUT"


class CutExists(InvalidRequest):
    code = "CUT_EXISTS"


class GroupNotEmpty(InvalidRequest):
    code = "GROUP_NOT_EMPTY"


class CommitGoesBack(InvalidRequest):
    code = "COMMIT_GOES_BACK"


class RetriableError(LedgerMQError):
    code = "RETRIABLE"
    retriable = True


class NotOwner(RetriableError):
    code = "NOT_OWNER"


class Unavailable(RetriableError):
    code = "UNAVAILABLE"


class TlsFailed(Unavailable):
    code = "TLS_FAILED"


class TopicBeingDeleted(RetriableError):
    code = "TOPIC_BEING_DELETED"


class ResourceExhausted(RetriableError):
    code = "RESOURCE_EXHAUSTED"


class QuotaExceeded(ResourceExhausted):
    """The caller's principal has reached its quota, or its share of what all principals fill; others go on."""

    code = "QUOTA_EXCEEDED"

    def __init__(self, message: str, *, limit: str = "", **details: Unpack[ErrorDetails]) -> None:
        super().__init__(message, **details)
        self.limit = limit
        """Name of the limit: of a quota, or of a table that is shared out; empty: the broker's release is older."""


class StoreFull(ResourceExhausted):
    code = "STORE_FULL"


class DeadlineExceeded(RetriableError):
    code = "DEADLINE_EXCEEDED"


class NoReply(DeadlineExceeded):
    code = "NO_REPLY"


class ProducerError(LedgerMQError):
    code = "PRODUCER_ERROR"


class UnknownProducer(ProducerError):
    code = "UNKNOWN_PRODUCER"


class ProducerEpochFenced(UnknownProducer):
    """A newer session of the same producer id has written to the partition. Nothing of the batch is stored."""

    code = "PRODUCER_EPOCH_FENCED"


class OutOfOrderSequence(ProducerError):
    code = "OUT_OF_ORDER_SEQUENCE"


class SequencePassed(OutOfOrderSequence):
    """The producer has stored a batch with this sequence so long ago that its offset is no longer remembered."""

    code = "SEQUENCE_PASSED"


class OutcomeUnknown(ProducerError):
    code = "OUTCOME_UNKNOWN"


class PartitionHeld(LedgerMQError):
    code = "PARTITION_HELD"


class ProducerFenced(LedgerMQError):
    code = "PRODUCER_FENCED"


class TransactionError(LedgerMQError):
    code = "TRANSACTION_ERROR"


class TransactionFenced(TransactionError):
    code = "TRANSACTION_FENCED"


class TransactionAborted(TransactionError):
    code = "TRANSACTION_ABORTED"


class TransactionTooLarge(TransactionError):
    code = "TRANSACTION_TOO_LARGE"


class TransactionUnknown(TransactionError):
    code = "TRANSACTION_UNKNOWN"


class TransactionIdReused(TransactionError):
    code = "TRANSACTION_ID_REUSED"


class TransactionOutcomeUnknown(TransactionError):
    code = "TRANSACTION_OUTCOME_UNKNOWN"


class GroupError(LedgerMQError):
    code = "GROUP_ERROR"


class UnknownMember(GroupError):
    code = "UNKNOWN_MEMBER"


class StaleAssignment(GroupError):
    code = "STALE_ASSIGNMENT"


class StaticIdInUse(GroupError):
    code = "STATIC_ID_IN_USE"


class FilterConflict(GroupError):
    code = "FILTER_CONFLICT"


class SearchStopped(LedgerMQError):
    code = "SEARCH_STOPPED"
    rest: Any = None
    """What is left to search: arguments for `client.find` (partitions, start, end)."""
    found: Any = ()
    """The messages that `Search.all` had found before."""


class Unauthorized(LedgerMQError):
    code = "UNAUTHORIZED"


class Unauthenticated(Unauthorized):
    code = "UNAUTHENTICATED"


class StoreError(LedgerMQError):
    code = "STORE_ERROR"


class DataDamaged(StoreError):
    code = "DATA_DAMAGED"


class FormatNotSupported(StoreError):
    code = "FORMAT_NOT_SUPPORTED"


class StoreUnusable(StoreError):
    code = "STORE_UNUSABLE"


def _tree(root: type[LedgerMQError]) -> dict[str, type[LedgerMQError]]:
    return {root.code: root} | {code: kind for child in root.__subclasses__() for code, kind in _tree(child).items()}


BY_CODE: dict[str, type[LedgerMQError]] = _tree(LedgerMQError)


def from_code(code: str, message: str, **details: Unpack[ErrorDetails]) -> LedgerMQError:
    """Return the error that `code` names; an unknown code (of a newer peer) becomes the base class."""
    return BY_CODE.get(code, LedgerMQError)(message, **details)
