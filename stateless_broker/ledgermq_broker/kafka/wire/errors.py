"""What a Kafka client gets for an error of ours, and the way back.

A code is chosen by what clients do with it, not by its name. librdkafka takes codes that it does not
know for permanent. It retries 7 (may be stored), 19 and 56 (certainly not stored), refreshes its
metadata and retries on 5, 6, 8, 9, 15 and 16, and retries 2 until the message's time-out.

ResourceExhausted should not come this far: the listener waits. An error of ours that has a
`kafka_code` decides itself; else the nearest class up the tree does.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import cast

from ledgermq import errors
from ledgermq.errors import LedgerMQError


class Code(IntEnum):
    """An error code; `NONE` is success."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


class Area(Enum):
    """What a client asked for."""

    PRODUCE = 0
    FETCH = 1
    """ListOffsets and OffsetForLeaderEpoch, too."""
    GROUP = 2
    ADMIN = 3


_TABLE: dict[type[LedgerMQError], tuple[Code, Code, Code, Code]] = {
    LedgerMQError: (Code.UNKNOWN_SERVER_ERROR,) * 4,
    errors.NotOwner: (
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_COORDINATOR,
        Code.REQUEST_TIMED_OUT,
    ),
    errors.RetriableError: (
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.REQUEST_TIMED_OUT,
    ),
    errors.ResourceExhausted: (
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.THROTTLING_QUOTA_EXCEEDED,
    ),
    errors.StoreFull: (
        Code.KAFKA_STORAGE_ERROR,
        Code.KAFKA_STORAGE_ERROR,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
    ),
    errors.StoreError: (
        Code.KAFKA_STORAGE_ERROR,
        Code.KAFKA_STORAGE_ERROR,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
    ),
    errors.DeadlineExceeded: (Code.REQUEST_TIMED_OUT,) * 4,
    errors.OutcomeUnknown: (Code.REQUEST_TIMED_OUT,) * 4,
    errors.TransactionOutcomeUnknown: (Code.REQUEST_TIMED_OUT,) * 4,
    errors.UnknownTopic: (Code.UNKNOWN_TOPIC_OR_PARTITION,) * 4,
    errors.UnknownPartition: (Code.UNKNOWN_TOPIC_OR_PARTITION,) * 4,
    errors.TopicBeingDeleted: (
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.TOPIC_ALREADY_EXISTS,
    ),
    errors.OffsetOutOfRange: (Code.OFFSET_OUT_OF_RANGE,) * 4,
    errors.InvalidRequest: (Code.INVALID_RECORD, Code.INVALID_REQUEST, Code.INVALID_REQUEST, Code.INVALID_REQUEST),
    errors.CorruptFrame: (Code.INVALID_RECORD, Code.INVALID_REQUEST, Code.INVALID_REQUEST, Code.INVALID_REQUEST),
    errors.InvalidRecord: (Code.INVALID_RECORD,) * 4,
    errors.MessageTooLarge: (Code.MESSAGE_TOO_LARGE,) * 4,
    errors.PublishNotAccepted: (Code.POLICY_VIOLATION,) * 4,
    errors.SubscribeNotAccepted: (
        Code.POLICY_VIOLATION,
        Code.KAFKA_STORAGE_ERROR,
        Code.POLICY_VIOLATION,
        Code.POLICY_VIOLATION,
    ),
    errors.BacklogQuotaExceeded: (
        Code.NOT_ENOUGH_REPLICAS,
        Code.KAFKA_STORAGE_ERROR,
        Code.POLICY_VIOLATION,
        Code.POLICY_VIOLATION,
    ),
    errors.DuplicateMessage: (Code.INVALID_RECORD,) * 4,
    errors.LegalHold: (Code.POLICY_VIOLATION,) * 4,
    errors.InvalidConfig: (Code.INVALID_CONFIG,) * 4,
    errors.TopicExists: (Code.TOPIC_ALREADY_EXISTS,) * 4,
    errors.InvalidTopicName: (Code.INVALID_TOPIC_EXCEPTION,) * 4,
    errors.UnknownMember: (Code.UNKNOWN_MEMBER_ID,) * 4,
    errors.StaleAssignment: (Code.ILLEGAL_GENERATION,) * 4,
    errors.StaticIdInUse: (Code.FENCED_INSTANCE_ID,) * 4,
    errors.FilterConflict: (Code.INCONSISTENT_GROUP_PROTOCOL,) * 4,
    errors.UnknownGroup: (Code.GROUP_ID_NOT_FOUND,) * 4,
    errors.GroupNotEmpty: (Code.NON_EMPTY_GROUP,) * 4,
    errors.InvalidGroupName: (Code.INVALID_GROUP_ID,) * 4,
    errors.PartitionHeld: (Code.TOPIC_AUTHORIZATION_FAILED,) * 4,
    errors.Unauthorized: (
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
    ),
    errors.UnknownProducer: (Code.UNKNOWN_PRODUCER_ID,) * 4,
    errors.ProducerEpochFenced: (Code.INVALID_PRODUCER_EPOCH,) * 4,
    errors.SequencePassed: (Code.DUPLICATE_SEQUENCE_NUMBER,) * 4,  # clients take it for success
    errors.OutOfOrderSequence: (Code.OUT_OF_ORDER_SEQUENCE_NUMBER,) * 4,
    errors.TransactionFenced: (Code.INVALID_PRODUCER_EPOCH,) * 4,
    errors.TransactionAborted: (Code.INVALID_PRODUCER_EPOCH,) * 4,
    errors.TransactionTooLarge: (Code.POLICY_VIOLATION,) * 4,
    errors.TransactionUnknown: (Code.INVALID_PRODUCER_ID_MAPPING,) * 4,
    errors.TransactionIdReused: (Code.POLICY_VIOLATION,) * 4,
}

_BACK: dict[Code, type[LedgerMQError]] = {
    Code.OFFSET_OUT_OF_RANGE: errors.OffsetOutOfRange,
    Code.CORRUPT_MESSAGE: errors.CorruptFrame,
    Code.UNKNOWN_TOPIC_OR_PARTITION: errors.UnknownTopic,
    Code.LEADER_NOT_AVAILABLE: errors.Unavailable,
    Code.NOT_LEADER_OR_FOLLOWER: errors.NotOwner,
    Code.REQUEST_TIMED_OUT: errors.DeadlineExceeded,
    Code.MESSAGE_TOO_LARGE: errors.MessageTooLarge,
    Code.COORDINATOR_LOAD_IN_PROGRESS: errors.Unavailable,
    Code.COORDINATOR_NOT_AVAILABLE: errors.Unavailable,
    Code.NOT_COORDINATOR: errors.NotOwner,
    Code.INVALID_TOPIC_EXCEPTION: errors.InvalidTopicName,
    Code.NOT_ENOUGH_REPLICAS: errors.ResourceExhausted,
    Code.ILLEGAL_GENERATION: errors.StaleAssignment,
    Code.INCONSISTENT_GROUP_PROTOCOL: errors.FilterConflict,
    Code.INVALID_GROUP_ID: errors.InvalidGroupName,
    Code.UNKNOWN_MEMBER_ID: errors.UnknownMember,
    Code.TOPIC_AUTHORIZATION_FAILED: errors.Unauthorized,
    Code.GROUP_AUTHORIZATION_FAILED: errors.Unauthorized,
    Code.CLUSTER_AUTHORIZATION_FAILED: errors.Unauthorized,
    Code.INVALID_TIMESTAMP: errors.InvalidRecord,
    Code.TOPIC_ALREADY_EXISTS: errors.TopicExists,
    Code.INVALID_CONFIG: errors.InvalidConfig,
    Code.INVALID_REQUEST: errors.InvalidRequest,
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: errors.CorruptFrame,
    Code.POLICY_VIOLATION: errors.PublishNotAccepted,
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: errors.OutOfOrderSequence,
    Code.INVALID_PRODUCER_EPOCH: errors.TransactionFenced,
    Code.INVALID_PRODUCER_ID_MAPPING: errors.TransactionUnknown,
    Code.KAFKA_STORAGE_ERROR: errors.StoreError,
    Code.UNKNOWN_PRODUCER_ID: errors.UnknownProducer,
    Code.NON_EMPTY_GROUP: errors.GroupNotEmpty,
    Code.GROUP_ID_NOT_FOUND: errors.UnknownGroup,
    Code.FENCED_INSTANCE_ID: errors.StaticIdInUse,
    Code.INVALID_RECORD: errors.InvalidRecord,
    Code.THROTTLING_QUOTA_EXCEEDED: errors.ResourceExhausted,
    Code.UNKNOWN_TOPIC_ID: errors.UnknownTopic,
}


def code_of(error: LedgerMQError, area: Area) -> Code:
    """Return the code by which a client that asked for `area` does the right thing."""
    own = getattr(error, "kafka_code", None)
    if own is not None:
        return Code(cast(int, own))
    if isinstance(error, errors.Unavailable) and error.object_key is not None:  # the store does not answer
        return _TABLE[errors.StoreError][area.value]
    return next(_TABLE[kind][area.value] for kind in type(error).__mro__ if kind in _TABLE)


def error_of(code: int, message: str = "") -> LedgerMQError:
    """Return the error of ours that comes nearest to a code other than 0."""
    try:
        known = Code(code)
    except ValueError:
        return LedgerMQError(message or f"Kafka error code {code}")
    return _BACK.get(known, LedgerMQError)(message or known.name)
