from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABLE: _ClassVar[Acks]
    RECEIVED: _ClassVar[Acks]

class GroupStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAY: _ClassVar[GroupStep]
    JOIN: _ClassVar[GroupStep]
    LEAVE: _ClassVar[GroupStep]
    LEAVE_FOR_A_WHILE: _ClassVar[GroupStep]

class GroupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMPTY: _ClassVar[GroupState]
    RECONCILING: _ClassVar[GroupState]
    STABLE: _ClassVar[GroupState]

class TransactionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDINARY: _ClassVar[TransactionKind]
    TWO_PHASE: _ClassVar[TransactionKind]
    HALF_MESSAGE: _ClassVar[TransactionKind]

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNDECIDED: _ClassVar[TransactionState]
    COMMITTED: _ClassVar[TransactionState]
    ABORTED: _ClassVar[TransactionState]
    PREPARED: _ClassVar[TransactionState]
    COMMITTED_BY_OPERATOR: _ClassVar[TransactionState]
    ABORTED_BY_OPERATOR: _ClassVar[TransactionState]
    UNRESOLVED: _ClassVar[TransactionState]

class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMIT: _ClassVar[Resolution]
    ABORT: _ClassVar[Resolution]
    FORGET: _ClassVar[Resolution]
    GIVE_UP: _ClassVar[Resolution]

class Question(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FATE: _ClassVar[Question]
    CONFIRM: _ClassVar[Question]
    EXPIRED: _ClassVar[Question]
    SETTLED: _ClassVar[Question]

class RecallOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORGOTTEN: _ClassVar[RecallOutcome]
    RECALLED: _ClassVar[RecallOutcome]
    TOO_LATE: _ClassVar[RecallOutcome]

class ShareWord(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPT: _ClassVar[ShareWord]
    REJECT: _ClassVar[ShareWord]
    RELEASE_SHARE: _ClassVar[ShareWord]
    RETURN: _ClassVar[ShareWord]
    RENEW: _ClassVar[ShareWord]

class CutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CUT_PENDING: _ClassVar[CutStatus]
    CUT_TAKEN: _ClassVar[CutStatus]
    CUT_ABANDONED: _ClassVar[CutStatus]
    CUT_DROPPED: _ClassVar[CutStatus]

class CutStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CUT_HOLD: _ClassVar[CutStep]
    CUT_PLACE: _ClassVar[CutStep]
    CUT_CONFIRM: _ClassVar[CutStep]
    CUT_RELEASE: _ClassVar[CutStep]
    CUT_PIN: _ClassVar[CutStep]
DURABLE: Acks
RECEIVED: Acks
STAY: GroupStep
JOIN: GroupStep
LEAVE: GroupStep
LEAVE_FOR_A_WHILE: GroupStep
EMPTY: GroupState
RECONCILING: GroupState
STABLE: GroupState
ORDINARY: TransactionKind
TWO_PHASE: TransactionKind
HALF_MESSAGE: TransactionKind
UNDECIDED: TransactionState
COMMITTED: TransactionState
ABORTED: TransactionState
PREPARED: TransactionState
COMMITTED_BY_OPERATOR: TransactionState
ABORTED_BY_OPERATOR: TransactionState
UNRESOLVED: TransactionState
COMMIT: Resolution
ABORT: Resolution
FORGET: Resolution
GIVE_UP: Resolution
FATE: Question
CONFIRM: Question
EXPIRED: Question
SETTLED: Question
FORGOTTEN: RecallOutcome
RECALLED: RecallOutcome
TOO_LATE: RecallOutcome
ACCEPT: ShareWord
REJECT: ShareWord
RELEASE_SHARE: ShareWord
RETURN: ShareWord
RENEW: ShareWord
CUT_PENDING: CutStatus
CUT_TAKEN: CutStatus
CUT_ABANDONED: CutStatus
CUT_DROPPED: CutStatus
CUT_HOLD: CutStep
CUT_PLACE: CutStep
CUT_CONFIRM: CutStep
CUT_RELEASE: CutStep
CUT_PIN: CutStep
ITEMS_MAX_FIELD_NUMBER: _ClassVar[int]
items_max: _descriptor.FieldDescriptor
GUARD_FIELD_NUMBER: _ClassVar[int]
guard: _descriptor.FieldDescriptor
NEVER_REFUSED_FIELD_NUMBER: _ClassVar[int]
never_refused: _descriptor.FieldDescriptor

class Guard(_message.Message):
    __slots__ = ("produce", "consume", "describe", "create", "alter", "delete", "group", "transaction", "cluster", "brokers", "by_code", "change", "answers")
    PRODUCE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    ALTER_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    BY_CODE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    produce: str
    consume: str
    describe: str
    create: str
    alter: str
    delete: str
    group: str
    transaction: str
    cluster: bool
    brokers: bool
    by_code: bool
    change: bool
    answers: str
    def __init__(self, produce: _Optional[str] = ..., consume: _Optional[str] = ..., describe: _Optional[str] = ..., create: _Optional[str] = ..., alter: _Optional[str] = ..., delete: _Optional[str] = ..., group: _Optional[str] = ..., transaction: _Optional[str] = ..., cluster: _Optional[bool] = ..., brokers: _Optional[bool] = ..., by_code: _Optional[bool] = ..., change: _Optional[bool] = ..., answers: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms", "owner", "object_key", "not_stored", "exact_code", "limit", "end")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_KEY_FIELD_NUMBER: _ClassVar[int]
    NOT_STORED_FIELD_NUMBER: _ClassVar[int]
    EXACT_CODE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry_after_ms: int
    owner: str
    object_key: str
    not_stored: bool
    exact_code: str
    limit: str
    end: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., owner: _Optional[str] = ..., object_key: _Optional[str] = ..., not_stored: _Optional[bool] = ..., exact_code: _Optional[str] = ..., limit: _Optional[str] = ..., end: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ProduceHeader
    payload: bytes
    def __init__(self, header: _Optional[_Union[ProduceHeader, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ProduceHeader(_message.Message):
    __slots__ = ("acks", "batches", "number")
    ACKS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    acks: Acks
    batches: _containers.RepeatedCompositeFieldContainer[ProduceBatch]
    number: int
    def __init__(self, acks: _Optional[_Union[Acks, str]] = ..., batches: _Optional[_Iterable[_Union[ProduceBatch, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class ProduceBatch(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "length", "crc", "record_count", "timestamp_min_us", "timestamp_max_us", "schema", "producer", "expect_end", "traceparent", "tracestate")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MIN_US_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MAX_US_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    EXPECT_END_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    length: int
    crc: int
    record_count: int
    timestamp_min_us: int
    timestamp_max_us: int
    schema: int
    producer: ProducerSession
    expect_end: int
    traceparent: str
    tracestate: str
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., record_count: _Optional[int] = ..., timestamp_min_us: _Optional[int] = ..., timestamp_max_us: _Optional[int] = ..., schema: _Optional[int] = ..., producer: _Optional[_Union[ProducerSession, _Mapping]] = ..., expect_end: _Optional[int] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class ProducerSession(_message.Message):
    __slots__ = ("id", "epoch", "sequence", "opened_slot")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OPENED_SLOT_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    epoch: int
    sequence: int
    opened_slot: int
    def __init__(self, id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., opened_slot: _Optional[int] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("results", "number", "put_ms")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUT_MS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ProduceResult]
    number: int
    put_ms: int
    def __init__(self, results: _Optional[_Iterable[_Union[ProduceResult, _Mapping]]] = ..., number: _Optional[int] = ..., put_ms: _Optional[int] = ...) -> None: ...

class ProduceResult(_message.Message):
    __slots__ = ("base_offset", "topic_id", "error", "append_us", "duplicates")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    APPEND_US_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    topic_id: int
    error: Error
    append_us: int
    duplicates: _containers.RepeatedCompositeFieldContainer[DuplicateRecord]
    def __init__(self, base_offset: _Optional[int] = ..., topic_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., append_us: _Optional[int] = ..., duplicates: _Optional[_Iterable[_Union[DuplicateRecord, _Mapping]]] = ...) -> None: ...

class DuplicateRecord(_message.Message):
    __slots__ = ("row", "offset", "same_as")
    ROW_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SAME_AS_FIELD_NUMBER: _ClassVar[int]
    row: int
    offset: int
    same_as: int
    def __init__(self, row: _Optional[int] = ..., offset: _Optional[int] = ..., same_as: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("partitions", "max_bytes", "max_wait_ms", "min_bytes", "direct")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchPartition]
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    direct: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchPartition, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., direct: _Optional[bool] = ...) -> None: ...

class FetchPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "tags", "function")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    function: str
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., function: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: FetchHeader
    payload: bytes
    def __init__(self, header: _Optional[_Union[FetchHeader, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class FetchHeader(_message.Message):
    __slots__ = ("partitions", "objects")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchedPartition]
    objects: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchedPartition, _Mapping]]] = ..., objects: _Optional[_Iterable[str]] = ...) -> None: ...

class FetchedPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "high_watermark", "log_start", "batches", "error", "next_offset", "judged", "failed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    high_watermark: int
    log_start: int
    batches: _containers.RepeatedCompositeFieldContainer[FetchedBatch]
    error: Error
    next_offset: int
    judged: bool
    failed: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[FetchedBatch, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., next_offset: _Optional[int] = ..., judged: _Optional[bool] = ..., failed: _Optional[int] = ...) -> None: ...

class FetchedBatch(_message.Message):
    __slots__ = ("base_offset", "record_count", "length", "crc", "object", "position", "passes")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    record_count: int
    length: int
    crc: int
    object: int
    position: int
    passes: bytes
    def __init__(self, base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., object: _Optional[int] = ..., position: _Optional[int] = ..., passes: _Optional[bytes] = ...) -> None: ...

class TopicPartition(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("queries",)
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedCompositeFieldContainer[OffsetQuery]
    def __init__(self, queries: _Optional[_Iterable[_Union[OffsetQuery, _Mapping]]] = ...) -> None: ...

class OffsetQuery(_message.Message):
    __slots__ = ("topic", "partition", "earliest", "latest", "timestamp_us", "durable", "settled", "stored")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    earliest: bool
    latest: bool
    timestamp_us: int
    durable: bool
    settled: bool
    stored: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_us: _Optional[int] = ..., durable: _Optional[bool] = ..., settled: _Optional[bool] = ..., stored: _Optional[bool] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OffsetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OffsetResult, _Mapping]]] = ...) -> None: ...

class OffsetResult(_message.Message):
    __slots__ = ("offset", "error", "stored_bytes")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    error: Error
    stored_bytes: int
    def __init__(self, offset: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions", "dry_run")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[RecordsToDelete]
    dry_run: bool
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[RecordsToDelete, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class RecordsToDelete(_message.Message):
    __slots__ = ("partition", "offset", "timestamp_us", "end")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    timestamp_us: int
    end: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., end: _Optional[bool] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[DeletedRecords]
    def __init__(self, results: _Optional[_Iterable[_Union[DeletedRecords, _Mapping]]] = ...) -> None: ...

class DeletedRecords(_message.Message):
    __slots__ = ("log_start_before", "log_start", "error")
    LOG_START_BEFORE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    log_start_before: int
    log_start: int
    error: Error
    def __init__(self, log_start_before: _Optional[int] = ..., log_start: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class FindMessagesRequest(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "key", "offset", "first", "end", "oldest_first", "max_messages", "max_read_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    key: bytes
    offset: int
    first: int
    end: int
    oldest_first: bool
    max_messages: int
    max_read_bytes: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., key: _Optional[bytes] = ..., offset: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., oldest_first: _Optional[bool] = ..., max_messages: _Optional[int] = ..., max_read_bytes: _Optional[int] = ...) -> None: ...

class FindMessagesResponse(_message.Message):
    __slots__ = ("topic_id", "messages", "batch", "left_first", "left_end", "read_bytes")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIRST_FIELD_NUMBER: _ClassVar[int]
    LEFT_END_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    messages: _containers.RepeatedCompositeFieldContainer[FoundMessage]
    batch: bytes
    left_first: int
    left_end: int
    read_bytes: int
    def __init__(self, topic_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[FoundMessage, _Mapping]]] = ..., batch: _Optional[bytes] = ..., left_first: _Optional[int] = ..., left_end: _Optional[int] = ..., read_bytes: _Optional[int] = ...) -> None: ...

class FoundMessage(_message.Message):
    __slots__ = ("offset", "segment", "position", "file", "stored_ms", "compacted_ms", "stored_by")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    STORED_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_MS_FIELD_NUMBER: _ClassVar[int]
    STORED_BY_FIELD_NUMBER: _ClassVar[int]
    offset: int
    segment: str
    position: int
    file: str
    stored_ms: int
    compacted_ms: int
    stored_by: StoredBy
    def __init__(self, offset: _Optional[int] = ..., segment: _Optional[str] = ..., position: _Optional[int] = ..., file: _Optional[str] = ..., stored_ms: _Optional[int] = ..., compacted_ms: _Optional[int] = ..., stored_by: _Optional[_Union[StoredBy, _Mapping]] = ...) -> None: ...

class StoredBy(_message.Message):
    __slots__ = ("broker", "epoch", "base_offset", "record_count", "producer_id", "producer_epoch", "sequence")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    broker: str
    epoch: int
    base_offset: int
    record_count: int
    producer_id: bytes
    producer_epoch: int
    sequence: int
    def __init__(self, broker: _Optional[str] = ..., epoch: _Optional[int] = ..., base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., producer_id: _Optional[bytes] = ..., producer_epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class HoldPartitionsRequest(_message.Message):
    __slots__ = ("producer_id", "name", "fences", "partitions", "caller")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    name: str
    fences: bool
    partitions: _containers.RepeatedCompositeFieldContainer[WantedPartition]
    caller: int
    def __init__(self, producer_id: _Optional[bytes] = ..., name: _Optional[str] = ..., fences: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[WantedPartition, _Mapping]]] = ..., caller: _Optional[int] = ...) -> None: ...

class WantedPartition(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "number")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: int
    number: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class HoldPartitionsResponse(_message.Message):
    __slots__ = ("holders",)
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedCompositeFieldContainer[PartitionHolder]
    def __init__(self, holders: _Optional[_Iterable[_Union[PartitionHolder, _Mapping]]] = ...) -> None: ...

class PartitionHolder(_message.Message):
    __slots__ = ("error", "is_caller", "is_held", "name", "number", "lease_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_CALLER_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    is_caller: bool
    is_held: bool
    name: str
    number: int
    lease_ms: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., is_caller: _Optional[bool] = ..., is_held: _Optional[bool] = ..., name: _Optional[str] = ..., number: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ReleasePartitionsRequest(_message.Message):
    __slots__ = ("producer_id", "partitions", "caller")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[WantedPartition]
    caller: int
    def __init__(self, producer_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[WantedPartition, _Mapping]]] = ..., caller: _Optional[int] = ...) -> None: ...

class ReleasePartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ReleasedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ReleasedPartition, _Mapping]]] = ...) -> None: ...

class ReleasedPartition(_message.Message):
    __slots__ = ("error", "released")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    error: Error
    released: bool
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., released: _Optional[bool] = ...) -> None: ...

class OpenProducerRequest(_message.Message):
    __slots__ = ("partitions", "producer_id", "caller")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    producer_id: bytes
    caller: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., producer_id: _Optional[bytes] = ..., caller: _Optional[int] = ...) -> None: ...

class OpenProducerResponse(_message.Message):
    __slots__ = ("partitions", "now_us")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OpenedPartition]
    now_us: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[OpenedPartition, _Mapping]]] = ..., now_us: _Optional[int] = ...) -> None: ...

class OpenedPartition(_message.Message):
    __slots__ = ("opened_slot", "error", "next_sequence")
    OPENED_SLOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    opened_slot: int
    error: Error
    next_sequence: int
    def __init__(self, opened_slot: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "root", "brokers", "bundles", "version", "controller", "problems")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    root: str
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerInfo]
    bundles: _containers.RepeatedCompositeFieldContainer[BundleInfo]
    version: str
    controller: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster_id: _Optional[str] = ..., root: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[BrokerInfo, _Mapping]]] = ..., bundles: _Optional[_Iterable[_Union[BundleInfo, _Mapping]]] = ..., version: _Optional[str] = ..., controller: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class BrokerInfo(_message.Message):
    __slots__ = ("id", "address", "alive", "draining")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    alive: bool
    draining: bool
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., alive: _Optional[bool] = ..., draining: _Optional[bool] = ...) -> None: ...

class BundleInfo(_message.Message):
    __slots__ = ("bundle", "owner", "epoch", "trouble", "load")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    owner: str
    epoch: int
    trouble: str
    load: int
    def __init__(self, bundle: _Optional[int] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., trouble: _Optional[str] = ..., load: _Optional[int] = ...) -> None: ...

class DescribeTopicsRequest(_message.Message):
    __slots__ = ("topics", "auto_create", "fresh", "deleted", "prefix", "after", "limit", "names_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AUTO_CREATE_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAMES_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    auto_create: bool
    fresh: bool
    deleted: bool
    prefix: str
    after: str
    limit: int
    names_only: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., auto_create: _Optional[bool] = ..., fresh: _Optional[bool] = ..., deleted: _Optional[bool] = ..., prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., names_only: _Optional[bool] = ...) -> None: ...

class DescribeTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "settings", "created_ms", "error", "message_ttl_ms", "message_ttl_ms_max", "nonce", "deleted_ms", "kept_until_ms", "racks")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TTL_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DELETED_MS_FIELD_NUMBER: _ClassVar[int]
    KEPT_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    RACKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionInfo]
    settings: _containers.ScalarMap[str, str]
    created_ms: int
    error: Error
    message_ttl_ms: int
    message_ttl_ms_max: int
    nonce: bytes
    deleted_ms: int
    kept_until_ms: int
    racks: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionInfo, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ..., created_ms: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., message_ttl_ms: _Optional[int] = ..., message_ttl_ms_max: _Optional[int] = ..., nonce: _Optional[bytes] = ..., deleted_ms: _Optional[int] = ..., kept_until_ms: _Optional[int] = ..., racks: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PartitionInfo(_message.Message):
    __slots__ = ("bundle", "owner", "moving_from", "moves")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MOVING_FROM_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    owner: str
    moving_from: int
    moves: int
    def __init__(self, bundle: _Optional[int] = ..., owner: _Optional[str] = ..., moving_from: _Optional[int] = ..., moves: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "settings", "nonce", "dry_run", "forwarded")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    settings: _containers.ScalarMap[str, str]
    nonce: bytes
    dry_run: bool
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., nonce: _Optional[bytes] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicInfo
    def __init__(self, topic: _Optional[_Union[TopicInfo, _Mapping]] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "set", "unset", "nonce", "topic_id", "dry_run", "rebuild_table", "let_go_table", "table_held_bytes", "forwarded")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REBUILD_TABLE_FIELD_NUMBER: _ClassVar[int]
    LET_GO_TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    nonce: bytes
    topic_id: int
    dry_run: bool
    rebuild_table: bool
    let_go_table: int
    table_held_bytes: int
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., nonce: _Optional[bytes] = ..., topic_id: _Optional[int] = ..., dry_run: _Optional[bool] = ..., rebuild_table: _Optional[bool] = ..., let_go_table: _Optional[int] = ..., table_held_bytes: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class AlterTopicResponse(_message.Message):
    __slots__ = ("topic", "rebuilt")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    REBUILT_FIELD_NUMBER: _ClassVar[int]
    topic: TopicInfo
    rebuilt: bool
    def __init__(self, topic: _Optional[_Union[TopicInfo, _Mapping]] = ..., rebuilt: _Optional[bool] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "topic_id", "now", "with_cuts", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    WITH_CUTS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    now: bool
    with_cuts: bool
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., now: _Optional[bool] = ..., with_cuts: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("kept_until_ms", "dropped_cuts", "with_cuts")
    KEPT_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_CUTS_FIELD_NUMBER: _ClassVar[int]
    WITH_CUTS_FIELD_NUMBER: _ClassVar[int]
    kept_until_ms: int
    dropped_cuts: _containers.RepeatedScalarFieldContainer[str]
    with_cuts: bool
    def __init__(self, kept_until_ms: _Optional[int] = ..., dropped_cuts: _Optional[_Iterable[str]] = ..., with_cuts: _Optional[bool] = ...) -> None: ...

class UndeleteTopicRequest(_message.Message):
    __slots__ = ("name", "nonce", "topic_id", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    nonce: bytes
    topic_id: int
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., nonce: _Optional[bytes] = ..., topic_id: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class UndeleteTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicInfo
    def __init__(self, topic: _Optional[_Union[TopicInfo, _Mapping]] = ...) -> None: ...

class GivenPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class GroupHeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "step", "owned", "max_wait_ms", "subscription", "seen_epoch", "caller", "kafka")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEEN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    step: GroupStep
    owned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    max_wait_ms: int
    subscription: GroupSubscription
    seen_epoch: int
    caller: int
    kafka: KafkaMember
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., step: _Optional[_Union[GroupStep, str]] = ..., owned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., max_wait_ms: _Optional[int] = ..., subscription: _Optional[_Union[GroupSubscription, _Mapping]] = ..., seen_epoch: _Optional[int] = ..., caller: _Optional[int] = ..., kafka: _Optional[_Union[KafkaMember, _Mapping]] = ...) -> None: ...

class KafkaMember(_message.Message):
    __slots__ = ("epoch", "instance_id", "owned", "topics", "pattern")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    instance_id: str
    owned: bool
    topics: bool
    pattern: bool
    def __init__(self, epoch: _Optional[int] = ..., instance_id: _Optional[str] = ..., owned: _Optional[bool] = ..., topics: _Optional[bool] = ..., pattern: _Optional[bool] = ...) -> None: ...

class GroupSubscription(_message.Message):
    __slots__ = ("topics", "topic_pattern", "assignor", "instance_id", "rack", "client_id", "session_timeout_ms", "rebalance_timeout_ms", "filter", "kafka_host")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    KAFKA_HOST_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_pattern: str
    assignor: str
    instance_id: str
    rack: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    filter: str
    kafka_host: str
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., topic_pattern: _Optional[str] = ..., assignor: _Optional[str] = ..., instance_id: _Optional[str] = ..., rack: _Optional[str] = ..., client_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., filter: _Optional[str] = ..., kafka_host: _Optional[str] = ...) -> None: ...

class GroupHeartbeatResponse(_message.Message):
    __slots__ = ("group_epoch", "assigned", "session_timeout_ms", "heartbeat_interval_ms", "is_news")
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    IS_NEWS_FIELD_NUMBER: _ClassVar[int]
    group_epoch: int
    assigned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    is_news: bool
    def __init__(self, group_epoch: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., session_timeout_ms: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., is_news: _Optional[bool] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "member_id", "commits", "caller")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    commits: _containers.RepeatedCompositeFieldContainer[OffsetCommit]
    caller: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[OffsetCommit, _Mapping]]] = ..., caller: _Optional[int] = ...) -> None: ...

class OffsetCommit(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "epoch", "counter", "offset", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    epoch: int
    counter: int
    offset: int
    metadata: str
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., counter: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class CommitResult(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class FetchCommittedRequest(_message.Message):
    __slots__ = ("group", "partitions", "without_staged", "member_id", "generation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_STAGED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    without_staged: bool
    member_id: str
    generation: int
    def __init__(self, group: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., without_staged: _Optional[bool] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class FetchCommittedResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[CommittedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[CommittedPartition, _Mapping]]] = ...) -> None: ...

class CommittedPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "metadata", "commit_ms", "epoch", "error", "counter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    metadata: str
    commit_ms: int
    epoch: int
    error: Error
    counter: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ..., commit_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., counter: _Optional[int] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "resets", "nonce", "caller")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    group: str
    resets: _containers.RepeatedCompositeFieldContainer[OffsetReset]
    nonce: bytes
    caller: int
    def __init__(self, group: _Optional[str] = ..., resets: _Optional[_Iterable[_Union[OffsetReset, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., caller: _Optional[int] = ...) -> None: ...

class OffsetReset(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class FindCoordinatorRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class FindCoordinatorResponse(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class JoinClassicGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "protocol_type", "protocols", "client_id", "client_host", "session_timeout_ms", "rebalance_timeout_ms", "id_required", "caller")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ID_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    protocol_type: str
    protocols: _containers.RepeatedCompositeFieldContainer[ClassicProtocol]
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    id_required: bool
    caller: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocols: _Optional[_Iterable[_Union[ClassicProtocol, _Mapping]]] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., id_required: _Optional[bool] = ..., caller: _Optional[int] = ...) -> None: ...

class ClassicProtocol(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class JoinClassicGroupResponse(_message.Message):
    __slots__ = ("member_id", "join_again", "generation", "protocol_type", "protocol", "leader", "members", "skip_assignment")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    JOIN_AGAIN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SKIP_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    join_again: bool
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: _containers.RepeatedCompositeFieldContainer[JoinedMember]
    skip_assignment: bool
    def __init__(self, member_id: _Optional[str] = ..., join_again: _Optional[bool] = ..., generation: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., leader: _Optional[str] = ..., members: _Optional[_Iterable[_Union[JoinedMember, _Mapping]]] = ..., skip_assignment: _Optional[bool] = ...) -> None: ...

class JoinedMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "metadata")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    metadata: bytes
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...

class SyncClassicGroupRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "generation", "protocol_type", "protocol", "assignments")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    generation: int
    protocol_type: str
    protocol: str
    assignments: _containers.RepeatedCompositeFieldContainer[ClassicAssignment]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., assignments: _Optional[_Iterable[_Union[ClassicAssignment, _Mapping]]] = ...) -> None: ...

class ClassicAssignment(_message.Message):
    __slots__ = ("member_id", "assignment")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    assignment: bytes
    def __init__(self, member_id: _Optional[str] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class SyncClassicGroupResponse(_message.Message):
    __slots__ = ("protocol_type", "protocol", "assignment")
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    protocol_type: str
    protocol: str
    assignment: bytes
    def __init__(self, protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class ClassicHeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "generation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    generation: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class ClassicHeartbeatResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveClassicGroupRequest(_message.Message):
    __slots__ = ("group", "members")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    members: _containers.RepeatedCompositeFieldContainer[LeavingMember]
    def __init__(self, group: _Optional[str] = ..., members: _Optional[_Iterable[_Union[LeavingMember, _Mapping]]] = ...) -> None: ...

class LeavingMember(_message.Message):
    __slots__ = ("member_id", "instance_id")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ...) -> None: ...

class LeaveClassicGroupResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LeaveResult]
    def __init__(self, results: _Optional[_Iterable[_Union[LeaveResult, _Mapping]]] = ...) -> None: ...

class LeaveResult(_message.Message):
    __slots__ = ("error", "kafka_code")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KAFKA_CODE_FIELD_NUMBER: _ClassVar[int]
    error: Error
    kafka_code: int
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., kafka_code: _Optional[int] = ...) -> None: ...

class CommitForGenerationRequest(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "generation", "outside", "commits", "caller")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    generation: int
    outside: bool
    commits: _containers.RepeatedCompositeFieldContainer[GenerationCommit]
    caller: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., outside: _Optional[bool] = ..., commits: _Optional[_Iterable[_Union[GenerationCommit, _Mapping]]] = ..., caller: _Optional[int] = ...) -> None: ...

class GenerationCommit(_message.Message):
    __slots__ = ("topic", "partition", "offset", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    metadata: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ...) -> None: ...

class CommitForGenerationResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("partition", "topic")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    partition: int
    topic: str
    def __init__(self, partition: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "partitions", "of_topic")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OF_TOPIC_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    partitions: int
    of_topic: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ..., partitions: _Optional[int] = ..., of_topic: _Optional[bool] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group", "state", "epoch", "assignor", "members", "committed", "member_count", "pending", "classic", "subscribed")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    CLASSIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: GroupState
    epoch: int
    assignor: str
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    committed: _containers.RepeatedCompositeFieldContainer[CommittedPartition]
    member_count: int
    pending: _containers.RepeatedCompositeFieldContainer[StagedOffset]
    classic: ClassicGroup
    subscribed: bool
    def __init__(self, group: _Optional[str] = ..., state: _Optional[_Union[GroupState, str]] = ..., epoch: _Optional[int] = ..., assignor: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[CommittedPartition, _Mapping]]] = ..., member_count: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[StagedOffset, _Mapping]]] = ..., classic: _Optional[_Union[ClassicGroup, _Mapping]] = ..., subscribed: _Optional[bool] = ...) -> None: ...

class ClassicGroup(_message.Message):
    __slots__ = ("state", "protocol_type", "protocol", "generation", "members")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    state: str
    protocol_type: str
    protocol: str
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[ClassicMember]
    def __init__(self, state: _Optional[str] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ClassicMember, _Mapping]]] = ...) -> None: ...

class ClassicMember(_message.Message):
    __slots__ = ("member_id", "instance_id", "client_id", "client_host", "metadata", "assignment")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., metadata: _Optional[bytes] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class StagedOffset(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "transaction", "staged_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    STAGED_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    transaction: TransactionRef
    staged_ms: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., staged_ms: _Optional[int] = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("member_id", "subscription", "assigned", "owned", "heartbeat_age_ms", "seen_epoch", "target")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SEEN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    subscription: GroupSubscription
    assigned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    owned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    heartbeat_age_ms: int
    seen_epoch: int
    target: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    def __init__(self, member_id: _Optional[str] = ..., subscription: _Optional[_Union[GroupSubscription, _Mapping]] = ..., assigned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., owned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., heartbeat_age_ms: _Optional[int] = ..., seen_epoch: _Optional[int] = ..., target: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "coordinator")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    group: GroupInfo
    coordinator: str
    def __init__(self, group: _Optional[_Union[GroupInfo, _Mapping]] = ..., coordinator: _Optional[str] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group", "epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransactionRef(_message.Message):
    __slots__ = ("transactional_id", "coordinator", "producer_id", "epoch", "number")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    coordinator: int
    producer_id: bytes
    epoch: int
    number: int
    def __init__(self, transactional_id: _Optional[str] = ..., coordinator: _Optional[int] = ..., producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: StageHeader
    payload: bytes
    def __init__(self, header: _Optional[_Union[StageHeader, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class StageHeader(_message.Message):
    __slots__ = ("transaction", "branch", "batches", "added", "number", "adds", "also")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    branch: bytes
    batches: _containers.RepeatedCompositeFieldContainer[StageBatch]
    added: bool
    number: int
    adds: bool
    also: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., branch: _Optional[bytes] = ..., batches: _Optional[_Iterable[_Union[StageBatch, _Mapping]]] = ..., added: _Optional[bool] = ..., number: _Optional[int] = ..., adds: _Optional[bool] = ..., also: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class StageBatch(_message.Message):
    __slots__ = ("batch", "sequence")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    batch: ProduceBatch
    sequence: int
    def __init__(self, batch: _Optional[_Union[ProduceBatch, _Mapping]] = ..., sequence: _Optional[int] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("results", "number", "put_ms")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUT_MS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[StageResult]
    number: int
    put_ms: int
    def __init__(self, results: _Optional[_Iterable[_Union[StageResult, _Mapping]]] = ..., number: _Optional[int] = ..., put_ms: _Optional[int] = ...) -> None: ...

class StageResult(_message.Message):
    __slots__ = ("topic_id", "bundle", "error", "kafka_code")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KAFKA_CODE_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    bundle: int
    error: Error
    kafka_code: int
    def __init__(self, topic_id: _Optional[int] = ..., bundle: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., kafka_code: _Optional[int] = ...) -> None: ...

class StageOffsetsRequest(_message.Message):
    __slots__ = ("transaction", "group", "member_id", "commits", "caller", "added")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    group: str
    member_id: str
    commits: _containers.RepeatedCompositeFieldContainer[OffsetCommit]
    caller: int
    added: ClassicCommitter
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[OffsetCommit, _Mapping]]] = ..., caller: _Optional[int] = ..., added: _Optional[_Union[ClassicCommitter, _Mapping]] = ...) -> None: ...

class ClassicCommitter(_message.Message):
    __slots__ = ("instance_id", "generation", "outside", "adds")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    generation: int
    outside: bool
    adds: bool
    def __init__(self, instance_id: _Optional[str] = ..., generation: _Optional[int] = ..., outside: _Optional[bool] = ..., adds: _Optional[bool] = ...) -> None: ...

class StageOffsetsResponse(_message.Message):
    __slots__ = ("results", "bundle")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CommitResult]
    bundle: int
    def __init__(self, results: _Optional[_Iterable[_Union[CommitResult, _Mapping]]] = ..., bundle: _Optional[int] = ...) -> None: ...

class InitTransactionsRequest(_message.Message):
    __slots__ = ("transactional_id", "timeout_ms", "kind", "check_group", "nonce", "caller", "kafka", "kept_ms", "content")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHECK_GROUP_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    KEPT_MS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    timeout_ms: int
    kind: TransactionKind
    check_group: str
    nonce: bytes
    caller: int
    kafka: KafkaProducer
    kept_ms: int
    content: bytes
    def __init__(self, transactional_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., kind: _Optional[_Union[TransactionKind, str]] = ..., check_group: _Optional[str] = ..., nonce: _Optional[bytes] = ..., caller: _Optional[int] = ..., kafka: _Optional[_Union[KafkaProducer, _Mapping]] = ..., kept_ms: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class KafkaProducer(_message.Message):
    __slots__ = ("id", "epoch")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    epoch: int
    def __init__(self, id: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class InitTransactionsResponse(_message.Message):
    __slots__ = ("producer_id", "epoch", "coordinator", "timeout_ms", "now_us", "former", "kept_ms")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    KEPT_MS_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    epoch: int
    coordinator: int
    timeout_ms: int
    now_us: int
    former: TransactionState
    kept_ms: int
    def __init__(self, producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., coordinator: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., now_us: _Optional[int] = ..., former: _Optional[_Union[TransactionState, str]] = ..., kept_ms: _Optional[int] = ...) -> None: ...

class TransactionPart(_message.Message):
    __slots__ = ("bundle", "counts", "groups")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    counts: _containers.RepeatedCompositeFieldContainer[StagedCount]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bundle: _Optional[int] = ..., counts: _Optional[_Iterable[_Union[StagedCount, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class StagedCount(_message.Message):
    __slots__ = ("branch", "topic_id", "partition", "batches")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    branch: bytes
    topic_id: int
    partition: int
    batches: int
    def __init__(self, branch: _Optional[bytes] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., batches: _Optional[int] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transaction", "outcome", "parts", "added", "renews")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    RENEWS_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    outcome: TransactionState
    parts: _containers.RepeatedCompositeFieldContainer[TransactionPart]
    added: bool
    renews: bool
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., outcome: _Optional[_Union[TransactionState, str]] = ..., parts: _Optional[_Iterable[_Union[TransactionPart, _Mapping]]] = ..., added: _Optional[bool] = ..., renews: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("state", "producer_id", "epoch")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    state: TransactionState
    producer_id: bytes
    epoch: int
    def __init__(self, state: _Optional[_Union[TransactionState, str]] = ..., producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class TransactionOutcomeRequest(_message.Message):
    __slots__ = ("transactional_id", "epoch", "number")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    epoch: int
    number: int
    def __init__(self, transactional_id: _Optional[str] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class TransactionOutcomeResponse(_message.Message):
    __slots__ = ("state", "complete")
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    state: TransactionState
    complete: bool
    def __init__(self, state: _Optional[_Union[TransactionState, str]] = ..., complete: _Optional[bool] = ...) -> None: ...

class ResolveTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "resolution", "bundle")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    resolution: Resolution
    bundle: int
    def __init__(self, transactional_id: _Optional[str] = ..., resolution: _Optional[_Union[Resolution, str]] = ..., bundle: _Optional[int] = ...) -> None: ...

class ResolveTransactionResponse(_message.Message):
    __slots__ = ("transaction",)
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionInfo
    def __init__(self, transaction: _Optional[_Union[TransactionInfo, _Mapping]] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("partition", "open_only")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OPEN_ONLY_FIELD_NUMBER: _ClassVar[int]
    partition: int
    open_only: bool
    def __init__(self, partition: _Optional[int] = ..., open_only: _Optional[bool] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "staged", "partitions", "bundle")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    staged: _containers.RepeatedCompositeFieldContainer[StagedInfo]
    partitions: int
    bundle: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ..., staged: _Optional[_Iterable[_Union[StagedInfo, _Mapping]]] = ..., partitions: _Optional[int] = ..., bundle: _Optional[int] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ("transaction", "kind", "state", "complete", "changed_ms", "timeout_ms", "parts", "missing", "trouble", "check_group", "checks")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    CHECK_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    kind: TransactionKind
    state: TransactionState
    complete: bool
    changed_ms: int
    timeout_ms: int
    parts: _containers.RepeatedCompositeFieldContainer[TransactionPart]
    missing: _containers.RepeatedScalarFieldContainer[int]
    trouble: str
    check_group: str
    checks: int
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., kind: _Optional[_Union[TransactionKind, str]] = ..., state: _Optional[_Union[TransactionState, str]] = ..., complete: _Optional[bool] = ..., changed_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[TransactionPart, _Mapping]]] = ..., missing: _Optional[_Iterable[int]] = ..., trouble: _Optional[str] = ..., check_group: _Optional[str] = ..., checks: _Optional[int] = ...) -> None: ...

class StagedInfo(_message.Message):
    __slots__ = ("transaction", "batches", "bytes", "oldest_ms", "groups")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_MS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    batches: int
    bytes: int
    oldest_ms: int
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., batches: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_ms: _Optional[int] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class DescribeTransactionResponse(_message.Message):
    __slots__ = ("transaction", "coordinator", "added")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionInfo
    coordinator: str
    added: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, transaction: _Optional[_Union[TransactionInfo, _Mapping]] = ..., coordinator: _Optional[str] = ..., added: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class CompleteTransactionRequest(_message.Message):
    __slots__ = ("transaction", "outcome", "part")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    outcome: TransactionState
    part: TransactionPart
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., outcome: _Optional[_Union[TransactionState, str]] = ..., part: _Optional[_Union[TransactionPart, _Mapping]] = ...) -> None: ...

class CompleteTransactionResponse(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    def __init__(self, done: _Optional[bool] = ...) -> None: ...

class AskTransactionRequest(_message.Message):
    __slots__ = ("transaction", "question", "part")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    question: Question
    part: TransactionPart
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., question: _Optional[_Union[Question, str]] = ..., part: _Optional[_Union[TransactionPart, _Mapping]] = ...) -> None: ...

class AskTransactionResponse(_message.Message):
    __slots__ = ("state", "expired", "settled")
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    state: TransactionState
    expired: bool
    settled: bool
    def __init__(self, state: _Optional[_Union[TransactionState, str]] = ..., expired: _Optional[bool] = ..., settled: _Optional[bool] = ...) -> None: ...

class PollChecksRequest(_message.Message):
    __slots__ = ("partition", "check_group", "max_wait_ms", "max_checks")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CHECK_GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHECKS_FIELD_NUMBER: _ClassVar[int]
    partition: int
    check_group: str
    max_wait_ms: int
    max_checks: int
    def __init__(self, partition: _Optional[int] = ..., check_group: _Optional[str] = ..., max_wait_ms: _Optional[int] = ..., max_checks: _Optional[int] = ...) -> None: ...

class PollChecksResponse(_message.Message):
    __slots__ = ("checks", "partitions")
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    partitions: int
    def __init__(self, checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., partitions: _Optional[int] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("transaction", "attempt", "message")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    attempt: int
    message: StagedData
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., attempt: _Optional[int] = ..., message: _Optional[_Union[StagedData, _Mapping]] = ...) -> None: ...

class StagedData(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "record_count", "crc", "data")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    record_count: int
    crc: int
    data: bytes
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., record_count: _Optional[int] = ..., crc: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadStagedRequest(_message.Message):
    __slots__ = ("transaction", "part", "skip")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    part: TransactionPart
    skip: int
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., part: _Optional[_Union[TransactionPart, _Mapping]] = ..., skip: _Optional[int] = ...) -> None: ...

class ReadStagedResponse(_message.Message):
    __slots__ = ("batches", "left")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[StagedData]
    left: int
    def __init__(self, batches: _Optional[_Iterable[_Union[StagedData, _Mapping]]] = ..., left: _Optional[int] = ...) -> None: ...

class FindTransactionCoordinatorRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class AddToTransactionRequest(_message.Message):
    __slots__ = ("transaction", "partitions", "group")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    group: str
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., group: _Optional[str] = ...) -> None: ...

class AddToTransactionResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[AddedPartition]
    def __init__(self, results: _Optional[_Iterable[_Union[AddedPartition, _Mapping]]] = ...) -> None: ...

class AddedPartition(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class JoinTransactionRequest(_message.Message):
    __slots__ = ("transaction", "bundle", "topic_id", "partition", "group", "adds", "also")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ADDS_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    bundle: int
    topic_id: int
    partition: int
    group: str
    adds: bool
    also: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., bundle: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., group: _Optional[str] = ..., adds: _Optional[bool] = ..., also: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class JoinTransactionResponse(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CountStagedRequest(_message.Message):
    __slots__ = ("transaction", "bundle", "groups")
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    transaction: TransactionRef
    bundle: int
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transaction: _Optional[_Union[TransactionRef, _Mapping]] = ..., bundle: _Optional[int] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class CountStagedResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: TransactionPart
    def __init__(self, part: _Optional[_Union[TransactionPart, _Mapping]] = ...) -> None: ...

class RecallDelayedRequest(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "row", "due_us", "caller")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    row: int
    due_us: int
    caller: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., row: _Optional[int] = ..., due_us: _Optional[int] = ..., caller: _Optional[int] = ...) -> None: ...

class RecallDelayedResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: RecallOutcome
    def __init__(self, outcome: _Optional[_Union[RecallOutcome, str]] = ...) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("bundle", "topic", "topic_id", "partition", "max_messages")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    topic: str
    topic_id: int
    partition: int
    max_messages: int
    def __init__(self, bundle: _Optional[int] = ..., topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., max_messages: _Optional[int] = ...) -> None: ...

class ListDelayedResponse(_message.Message):
    __slots__ = ("messages", "left", "ranges", "summary")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DelayedMessage]
    left: int
    ranges: _containers.RepeatedCompositeFieldContainer[DelayedRange]
    summary: DelayedSummary
    def __init__(self, messages: _Optional[_Iterable[_Union[DelayedMessage, _Mapping]]] = ..., left: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[DelayedRange, _Mapping]]] = ..., summary: _Optional[_Union[DelayedSummary, _Mapping]] = ...) -> None: ...

class DelayedMessage(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "row", "due_us", "size_bytes", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    row: int
    due_us: int
    size_bytes: int
    key: bytes
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., row: _Optional[int] = ..., due_us: _Optional[int] = ..., size_bytes: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class DelayedRange(_message.Message):
    __slots__ = ("from_us", "to_us", "messages", "size_bytes")
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    TO_US_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    from_us: int
    to_us: int
    messages: int
    size_bytes: int
    def __init__(self, from_us: _Optional[int] = ..., to_us: _Optional[int] = ..., messages: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class DelayedSummary(_message.Message):
    __slots__ = ("messages", "size_bytes", "next_due_us", "watermark_us", "now_us", "trouble")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_DUE_US_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    messages: int
    size_bytes: int
    next_due_us: int
    watermark_us: int
    now_us: int
    trouble: str
    def __init__(self, messages: _Optional[int] = ..., size_bytes: _Optional[int] = ..., next_due_us: _Optional[int] = ..., watermark_us: _Optional[int] = ..., now_us: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class ShareFetchRequest(_message.Message):
    __slots__ = ("group", "member_id", "partitions", "max_records", "max_bytes", "max_wait_ms", "lease_ms", "latest", "timestamp_us", "filter", "caller")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[SharePartition]
    max_records: int
    max_bytes: int
    max_wait_ms: int
    lease_ms: int
    latest: bool
    timestamp_us: int
    filter: str
    caller: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[SharePartition, _Mapping]]] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., latest: _Optional[bool] = ..., timestamp_us: _Optional[int] = ..., filter: _Optional[str] = ..., caller: _Optional[int] = ...) -> None: ...

class SharePartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class ShareFetchResponse(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ShareFetchHeader
    payload: bytes
    def __init__(self, header: _Optional[_Union[ShareFetchHeader, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ShareFetchHeader(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[LeasedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[LeasedPartition, _Mapping]]] = ...) -> None: ...

class LeasedPartition(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "epoch", "lease", "lease_ms", "ranges", "batches", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    epoch: int
    lease: int
    lease_ms: int
    ranges: _containers.RepeatedCompositeFieldContainer[LeasedRange]
    batches: _containers.RepeatedCompositeFieldContainer[FetchedBatch]
    error: Error
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., lease: _Optional[int] = ..., lease_ms: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[LeasedRange, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[FetchedBatch, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class LeasedRange(_message.Message):
    __slots__ = ("first", "last", "deliveries")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    deliveries: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., deliveries: _Optional[int] = ...) -> None: ...

class ShareAnswerRequest(_message.Message):
    __slots__ = ("group", "member_id", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[SharePartitionAnswer]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[SharePartitionAnswer, _Mapping]]] = ...) -> None: ...

class SharePartitionAnswer(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "spans")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    spans: _containers.RepeatedCompositeFieldContainer[SharedSpan]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[SharedSpan, _Mapping]]] = ...) -> None: ...

class SharedSpan(_message.Message):
    __slots__ = ("first", "last", "epoch", "lease", "word", "time_ms")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    epoch: int
    lease: int
    word: ShareWord
    time_ms: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., epoch: _Optional[int] = ..., lease: _Optional[int] = ..., word: _Optional[_Union[ShareWord, str]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class ShareAnswerResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SharePartitionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SharePartitionResult, _Mapping]]] = ...) -> None: ...

class SharePartitionResult(_message.Message):
    __slots__ = ("late", "error")
    LATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    late: _containers.RepeatedCompositeFieldContainer[OffsetSpan]
    error: Error
    def __init__(self, late: _Optional[_Iterable[_Union[OffsetSpan, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class OffsetSpan(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class ResetSharesRequest(_message.Message):
    __slots__ = ("group", "resets", "nonce", "caller", "at_owners")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    AT_OWNERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    resets: _containers.RepeatedCompositeFieldContainer[ShareReset]
    nonce: bytes
    caller: int
    at_owners: bool
    def __init__(self, group: _Optional[str] = ..., resets: _Optional[_Iterable[_Union[ShareReset, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., caller: _Optional[int] = ..., at_owners: _Optional[bool] = ...) -> None: ...

class ShareReset(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "begun")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    begun: bytes
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., begun: _Optional[bytes] = ...) -> None: ...

class ResetSharesResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ShareResetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ShareResetResult, _Mapping]]] = ...) -> None: ...

class ShareResetResult(_message.Message):
    __slots__ = ("offset", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    error: Error
    def __init__(self, offset: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ListSharesRequest(_message.Message):
    __slots__ = ("bundle", "group", "members", "at_owner")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    AT_OWNER_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    group: str
    members: bool
    at_owner: bool
    def __init__(self, bundle: _Optional[int] = ..., group: _Optional[str] = ..., members: _Optional[bool] = ..., at_owner: _Optional[bool] = ...) -> None: ...

class ListSharesResponse(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[ShareInfo]
    def __init__(self, shares: _Optional[_Iterable[_Union[ShareInfo, _Mapping]]] = ...) -> None: ...

class ShareInfo(_message.Message):
    __slots__ = ("group", "topic", "topic_id", "partition", "start", "end", "high_watermark", "leased", "waiting", "finished", "members", "begun")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    topic_id: int
    partition: int
    start: int
    end: int
    high_watermark: int
    leased: int
    waiting: int
    finished: int
    members: _containers.RepeatedCompositeFieldContainer[ShareMember]
    begun: bytes
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ..., finished: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ShareMember, _Mapping]]] = ..., begun: _Optional[bytes] = ...) -> None: ...

class ShareMember(_message.Message):
    __slots__ = ("member_id", "leased", "lease_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    leased: int
    lease_ms: int
    def __init__(self, member_id: _Optional[str] = ..., leased: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("deny", "principal", "operations", "name", "prefix")
    DENY_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    deny: bool
    principal: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    name: str
    prefix: bool
    def __init__(self, deny: _Optional[bool] = ..., principal: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., prefix: _Optional[bool] = ...) -> None: ...

class StoredRule(_message.Message):
    __slots__ = ("id", "rule", "created_ms", "created_by", "trouble")
    ID_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    rule: Rule
    created_ms: int
    created_by: str
    trouble: str
    def __init__(self, id: _Optional[str] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class ChangeRulesRequest(_message.Message):
    __slots__ = ("grant", "revoke", "nonce", "forwarded", "created_by")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    grant: _containers.RepeatedCompositeFieldContainer[Rule]
    revoke: _containers.RepeatedScalarFieldContainer[str]
    nonce: bytes
    forwarded: bool
    created_by: str
    def __init__(self, grant: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ..., revoke: _Optional[_Iterable[str]] = ..., nonce: _Optional[bytes] = ..., forwarded: _Optional[bool] = ..., created_by: _Optional[str] = ...) -> None: ...

class ChangeRulesResponse(_message.Message):
    __slots__ = ("granted", "revoked")
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    granted: _containers.RepeatedScalarFieldContainer[str]
    revoked: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, granted: _Optional[_Iterable[str]] = ..., revoked: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRulesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRulesResponse(_message.Message):
    __slots__ = ("rules", "enforced")
    RULES_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[StoredRule]
    enforced: bool
    def __init__(self, rules: _Optional[_Iterable[_Union[StoredRule, _Mapping]]] = ..., enforced: _Optional[bool] = ...) -> None: ...

class TestRulesRequest(_message.Message):
    __slots__ = ("principal", "groups", "operation", "name")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    principal: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    operation: str
    name: str
    def __init__(self, principal: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., operation: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class TestRulesResponse(_message.Message):
    __slots__ = ("allowed", "why", "rule_id", "principal")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RULE_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    why: str
    rule_id: str
    principal: str
    def __init__(self, allowed: _Optional[bool] = ..., why: _Optional[str] = ..., rule_id: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("token_id", "hash", "user", "groups", "expires_ms", "forwarded", "created_by")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    hash: bytes
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    expires_ms: int
    forwarded: bool
    created_by: str
    def __init__(self, token_id: _Optional[str] = ..., hash: _Optional[bytes] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., expires_ms: _Optional[int] = ..., forwarded: _Optional[bool] = ..., created_by: _Optional[str] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("token_id", "nonce", "forwarded")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    nonce: bytes
    forwarded: bool
    def __init__(self, token_id: _Optional[str] = ..., nonce: _Optional[bytes] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class RevokeTokenResponse(_message.Message):
    __slots__ = ("existed", "is_exact")
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    IS_EXACT_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    is_exact: bool
    def __init__(self, existed: _Optional[bool] = ..., is_exact: _Optional[bool] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenInfo]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenInfo, _Mapping]]] = ...) -> None: ...

class TokenInfo(_message.Message):
    __slots__ = ("token_id", "user", "groups", "created_ms", "expires_ms", "created_by")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    created_ms: int
    expires_ms: int
    created_by: str
    def __init__(self, token_id: _Optional[str] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., created_by: _Optional[str] = ...) -> None: ...

class ScramName(_message.Message):
    __slots__ = ("user", "mechanism")
    USER_FIELD_NUMBER: _ClassVar[int]
    MECHANISM_FIELD_NUMBER: _ClassVar[int]
    user: str
    mechanism: str
    def __init__(self, user: _Optional[str] = ..., mechanism: _Optional[str] = ...) -> None: ...

class ScramCredential(_message.Message):
    __slots__ = ("name", "salt", "iterations", "stored_key", "server_key")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    name: ScramName
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    def __init__(self, name: _Optional[_Union[ScramName, _Mapping]] = ..., salt: _Optional[bytes] = ..., iterations: _Optional[int] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ...) -> None: ...

class ChangeScramRequest(_message.Message):
    __slots__ = ("set", "unset", "nonce", "forwarded", "created_by")
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    set: _containers.RepeatedCompositeFieldContainer[ScramCredential]
    unset: _containers.RepeatedCompositeFieldContainer[ScramName]
    nonce: bytes
    forwarded: bool
    created_by: str
    def __init__(self, set: _Optional[_Iterable[_Union[ScramCredential, _Mapping]]] = ..., unset: _Optional[_Iterable[_Union[ScramName, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., forwarded: _Optional[bool] = ..., created_by: _Optional[str] = ...) -> None: ...

class ChangeScramResponse(_message.Message):
    __slots__ = ("absent",)
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    absent: _containers.RepeatedCompositeFieldContainer[ScramName]
    def __init__(self, absent: _Optional[_Iterable[_Union[ScramName, _Mapping]]] = ...) -> None: ...

class ListScramRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListScramResponse(_message.Message):
    __slots__ = ("credentials",)
    CREDENTIALS_FIELD_NUMBER: _ClassVar[int]
    credentials: _containers.RepeatedCompositeFieldContainer[ScramInfo]
    def __init__(self, credentials: _Optional[_Iterable[_Union[ScramInfo, _Mapping]]] = ...) -> None: ...

class ScramInfo(_message.Message):
    __slots__ = ("name", "iterations", "created_ms", "created_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    name: ScramName
    iterations: int
    created_ms: int
    created_by: str
    def __init__(self, name: _Optional[_Union[ScramName, _Mapping]] = ..., iterations: _Optional[int] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ...) -> None: ...

class ConfirmRulesRequest(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class ConfirmRulesResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class ChangeQuotaRequest(_message.Message):
    __slots__ = ("principal", "client_id", "set", "unset", "nonce", "forwarded", "created_by")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    principal: str
    client_id: str
    set: _containers.ScalarMap[str, int]
    unset: _containers.RepeatedScalarFieldContainer[str]
    nonce: bytes
    forwarded: bool
    created_by: str
    def __init__(self, principal: _Optional[str] = ..., client_id: _Optional[str] = ..., set: _Optional[_Mapping[str, int]] = ..., unset: _Optional[_Iterable[str]] = ..., nonce: _Optional[bytes] = ..., forwarded: _Optional[bool] = ..., created_by: _Optional[str] = ...) -> None: ...

class ChangeQuotaResponse(_message.Message):
    __slots__ = ("quota",)
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    quota: StoredQuota
    def __init__(self, quota: _Optional[_Union[StoredQuota, _Mapping]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ("use_of",)
    USE_OF_FIELD_NUMBER: _ClassVar[int]
    use_of: str
    def __init__(self, use_of: _Optional[str] = ...) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas", "use")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[StoredQuota]
    use: QuotaUse
    def __init__(self, quotas: _Optional[_Iterable[_Union[StoredQuota, _Mapping]]] = ..., use: _Optional[_Union[QuotaUse, _Mapping]] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("limits", "used")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.ScalarMap[str, int]
    used: _containers.ScalarMap[str, int]
    def __init__(self, limits: _Optional[_Mapping[str, int]] = ..., used: _Optional[_Mapping[str, int]] = ...) -> None: ...

class StoredQuota(_message.Message):
    __slots__ = ("principal", "client_id", "limits", "created_ms", "created_by", "trouble")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    client_id: str
    limits: _containers.ScalarMap[str, int]
    created_ms: int
    created_by: str
    trouble: str
    def __init__(self, principal: _Optional[str] = ..., client_id: _Optional[str] = ..., limits: _Optional[_Mapping[str, int]] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("address", "undrain", "nonce")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    address: str
    undrain: bool
    nonce: bytes
    def __init__(self, address: _Optional[str] = ..., undrain: _Optional[bool] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("bundles", "overtaken")
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    OVERTAKEN_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedScalarFieldContainer[int]
    overtaken: bool
    def __init__(self, bundles: _Optional[_Iterable[int]] = ..., overtaken: _Optional[bool] = ...) -> None: ...

class AddBundlesRequest(_message.Message):
    __slots__ = ("bundles", "dry_run", "forwarded")
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    bundles: int
    dry_run: bool
    forwarded: bool
    def __init__(self, bundles: _Optional[int] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class AddBundlesResponse(_message.Message):
    __slots__ = ("before", "bundles", "once")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    before: int
    bundles: int
    once: bool
    def __init__(self, before: _Optional[int] = ..., bundles: _Optional[int] = ..., once: _Optional[bool] = ...) -> None: ...

class MovePartitionRequest(_message.Message):
    __slots__ = ("topic", "partition", "bundle", "dry_run", "forwarded", "nonce", "topic_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    bundle: int
    dry_run: bool
    forwarded: bool
    nonce: bytes
    topic_id: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., bundle: _Optional[int] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ..., nonce: _Optional[bytes] = ..., topic_id: _Optional[int] = ...) -> None: ...

class MovePartitionResponse(_message.Message):
    __slots__ = ("source", "move")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    source: int
    move: int
    def __init__(self, source: _Optional[int] = ..., move: _Optional[int] = ...) -> None: ...

class PrepareMoveRequest(_message.Message):
    __slots__ = ("topic_id", "partition", "dry_run")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    dry_run: bool
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class PrepareMoveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeTableRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeTableResponse(_message.Message):
    __slots__ = ("format", "folder", "generation", "is_current", "version", "oldest_held", "version_ms", "partitions", "behind_ms", "waits_for", "held_bytes", "foreign_objects", "foreign")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IS_CURRENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_HELD_FIELD_NUMBER: _ClassVar[int]
    VERSION_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    format: str
    folder: str
    generation: int
    is_current: bool
    version: int
    oldest_held: int
    version_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[DescribedTablePartition]
    behind_ms: int
    waits_for: str
    held_bytes: int
    foreign_objects: int
    foreign: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, format: _Optional[str] = ..., folder: _Optional[str] = ..., generation: _Optional[int] = ..., is_current: _Optional[bool] = ..., version: _Optional[int] = ..., oldest_held: _Optional[int] = ..., version_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[DescribedTablePartition, _Mapping]]] = ..., behind_ms: _Optional[int] = ..., waits_for: _Optional[str] = ..., held_bytes: _Optional[int] = ..., foreign_objects: _Optional[int] = ..., foreign: _Optional[_Iterable[str]] = ...) -> None: ...

class ListUndecodedRequest(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "offset", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    offset: int
    limit: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListUndecodedResponse(_message.Message):
    __slots__ = ("topic_id", "partitions", "records", "next_offset", "at_end")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partitions: int
    records: _containers.RepeatedCompositeFieldContainer[UndecodedRecord]
    next_offset: int
    at_end: bool
    def __init__(self, topic_id: _Optional[int] = ..., partitions: _Optional[int] = ..., records: _Optional[_Iterable[_Union[UndecodedRecord, _Mapping]]] = ..., next_offset: _Optional[int] = ..., at_end: _Optional[bool] = ...) -> None: ...

class UndecodedRecord(_message.Message):
    __slots__ = ("offset", "error", "schema_id")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    offset: int
    error: str
    schema_id: int
    def __init__(self, offset: _Optional[int] = ..., error: _Optional[str] = ..., schema_id: _Optional[int] = ...) -> None: ...

class DropTableRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DropTableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutSchemaRequest(_message.Message):
    __slots__ = ("subject", "kind", "text", "compatibility", "dry_run", "forwarded", "created_by")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    subject: str
    kind: str
    text: str
    compatibility: str
    dry_run: bool
    forwarded: bool
    created_by: str
    def __init__(self, subject: _Optional[str] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., compatibility: _Optional[str] = ..., dry_run: _Optional[bool] = ..., forwarded: _Optional[bool] = ..., created_by: _Optional[str] = ...) -> None: ...

class PutSchemaResponse(_message.Message):
    __slots__ = ("schema", "compatibility")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    schema: SchemaInfo
    compatibility: str
    def __init__(self, schema: _Optional[_Union[SchemaInfo, _Mapping]] = ..., compatibility: _Optional[str] = ...) -> None: ...

class DescribeSchemaRequest(_message.Message):
    __slots__ = ("id", "subject", "version", "kind", "text", "deleted")
    ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    id: int
    subject: str
    version: int
    kind: str
    text: str
    deleted: bool
    def __init__(self, id: _Optional[int] = ..., subject: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., deleted: _Optional[bool] = ...) -> None: ...

class DescribeSchemaResponse(_message.Message):
    __slots__ = ("schema", "subjects", "compatibility")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    schema: SchemaInfo
    subjects: _containers.RepeatedScalarFieldContainer[str]
    compatibility: str
    def __init__(self, schema: _Optional[_Union[SchemaInfo, _Mapping]] = ..., subjects: _Optional[_Iterable[str]] = ..., compatibility: _Optional[str] = ...) -> None: ...

class ListSchemasRequest(_message.Message):
    __slots__ = ("prefix", "deleted")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    deleted: bool
    def __init__(self, prefix: _Optional[str] = ..., deleted: _Optional[bool] = ...) -> None: ...

class ListSchemasResponse(_message.Message):
    __slots__ = ("subjects",)
    SUBJECTS_FIELD_NUMBER: _ClassVar[int]
    subjects: _containers.RepeatedCompositeFieldContainer[SchemaSubject]
    def __init__(self, subjects: _Optional[_Iterable[_Union[SchemaSubject, _Mapping]]] = ...) -> None: ...

class SchemaSubject(_message.Message):
    __slots__ = ("subject", "compatibility", "versions", "trouble")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    compatibility: str
    versions: _containers.RepeatedCompositeFieldContainer[SchemaInfo]
    trouble: str
    def __init__(self, subject: _Optional[str] = ..., compatibility: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[SchemaInfo, _Mapping]]] = ..., trouble: _Optional[str] = ...) -> None: ...

class DeleteSchemaRequest(_message.Message):
    __slots__ = ("subject", "version", "for_good", "nonce", "forwarded")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FOR_GOOD_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    subject: str
    version: int
    for_good: bool
    nonce: bytes
    forwarded: bool
    def __init__(self, subject: _Optional[str] = ..., version: _Optional[int] = ..., for_good: _Optional[bool] = ..., nonce: _Optional[bytes] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class DeleteSchemaResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, versions: _Optional[_Iterable[int]] = ...) -> None: ...

class SchemaInfo(_message.Message):
    __slots__ = ("id", "subject", "version", "kind", "text", "fields", "created_ms", "created_by", "deleted")
    ID_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    id: int
    subject: str
    version: int
    kind: str
    text: str
    fields: _containers.RepeatedCompositeFieldContainer[SchemaField]
    created_ms: int
    created_by: str
    deleted: bool
    def __init__(self, id: _Optional[int] = ..., subject: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[SchemaField, _Mapping]]] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ..., deleted: _Optional[bool] = ...) -> None: ...

class SchemaField(_message.Message):
    __slots__ = ("id", "path", "type", "removed")
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    id: int
    path: str
    type: str
    removed: bool
    def __init__(self, id: _Optional[int] = ..., path: _Optional[str] = ..., type: _Optional[str] = ..., removed: _Optional[bool] = ...) -> None: ...

class DescribedTablePartition(_message.Message):
    __slots__ = ("start", "end", "files", "rows", "size_bytes", "parquet_end", "stopped")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARQUET_END_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    files: int
    rows: int
    size_bytes: int
    parquet_end: int
    stopped: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., files: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., parquet_end: _Optional[int] = ..., stopped: _Optional[str] = ...) -> None: ...

class DescribeLakeRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DescribeLakeResponse(_message.Message):
    __slots__ = ("tables", "more")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[LakeTable]
    more: bool
    def __init__(self, tables: _Optional[_Iterable[_Union[LakeTable, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class LakeTable(_message.Message):
    __slots__ = ("topic", "format", "folder", "is_current", "version", "version_ms", "files", "rows", "size_bytes", "missing", "behind_ms", "waits_for", "held_bytes", "foreign_objects", "stopped", "trouble")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    IS_CURRENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_MS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    format: str
    folder: str
    is_current: bool
    version: int
    version_ms: int
    files: int
    rows: int
    size_bytes: int
    missing: int
    behind_ms: int
    waits_for: str
    held_bytes: int
    foreign_objects: int
    stopped: int
    trouble: str
    def __init__(self, topic: _Optional[str] = ..., format: _Optional[str] = ..., folder: _Optional[str] = ..., is_current: _Optional[bool] = ..., version: _Optional[int] = ..., version_ms: _Optional[int] = ..., files: _Optional[int] = ..., rows: _Optional[int] = ..., size_bytes: _Optional[int] = ..., missing: _Optional[int] = ..., behind_ms: _Optional[int] = ..., waits_for: _Optional[str] = ..., held_bytes: _Optional[int] = ..., foreign_objects: _Optional[int] = ..., stopped: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class ListCostsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListCostsResponse(_message.Message):
    __slots__ = ("since_ms", "total_picodollars", "costs", "kept", "write_dollars", "read_dollars", "delete_dollars", "tb_month_dollars", "traffic")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PICODOLLARS_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    WRITE_DOLLARS_FIELD_NUMBER: _ClassVar[int]
    READ_DOLLARS_FIELD_NUMBER: _ClassVar[int]
    DELETE_DOLLARS_FIELD_NUMBER: _ClassVar[int]
    TB_MONTH_DOLLARS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    total_picodollars: int
    costs: _containers.RepeatedCompositeFieldContainer[Cost]
    kept: _containers.RepeatedCompositeFieldContainer[KeptBytes]
    write_dollars: float
    read_dollars: float
    delete_dollars: float
    tb_month_dollars: float
    traffic: _containers.RepeatedCompositeFieldContainer[ClientTraffic]
    def __init__(self, since_ms: _Optional[int] = ..., total_picodollars: _Optional[int] = ..., costs: _Optional[_Iterable[_Union[Cost, _Mapping]]] = ..., kept: _Optional[_Iterable[_Union[KeptBytes, _Mapping]]] = ..., write_dollars: _Optional[float] = ..., read_dollars: _Optional[float] = ..., delete_dollars: _Optional[float] = ..., tb_month_dollars: _Optional[float] = ..., traffic: _Optional[_Iterable[_Union[ClientTraffic, _Mapping]]] = ...) -> None: ...

class ClientTraffic(_message.Message):
    __slots__ = ("rack", "bytes_in", "bytes_out")
    RACK_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    rack: str
    bytes_in: int
    bytes_out: int
    def __init__(self, rack: _Optional[str] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("topic", "principal", "write_picodollars", "read_picodollars")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    WRITE_PICODOLLARS_FIELD_NUMBER: _ClassVar[int]
    READ_PICODOLLARS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    principal: str
    write_picodollars: int
    read_picodollars: int
    def __init__(self, topic: _Optional[str] = ..., principal: _Optional[str] = ..., write_picodollars: _Optional[int] = ..., read_picodollars: _Optional[int] = ...) -> None: ...

class KeptBytes(_message.Message):
    __slots__ = ("topic", "size_bytes", "partitions_unknown")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    size_bytes: int
    partitions_unknown: int
    def __init__(self, topic: _Optional[str] = ..., size_bytes: _Optional[int] = ..., partitions_unknown: _Optional[int] = ...) -> None: ...

class ListLoadsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLoadsResponse(_message.Message):
    __slots__ = ("bundles",)
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[BundleLoads]
    def __init__(self, bundles: _Optional[_Iterable[_Union[BundleLoads, _Mapping]]] = ...) -> None: ...

class BundleLoads(_message.Message):
    __slots__ = ("bundle", "epoch", "measured_ms", "partitions")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEASURED_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    epoch: int
    measured_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionLoad]
    def __init__(self, bundle: _Optional[int] = ..., epoch: _Optional[int] = ..., measured_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionLoad, _Mapping]]] = ...) -> None: ...

class PartitionLoad(_message.Message):
    __slots__ = ("topic_id", "partition", "load")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    load: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., load: _Optional[int] = ...) -> None: ...

class DescribeBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeBrokerResponse(_message.Message):
    __slots__ = ("id", "address", "version", "started_ms", "draining", "bundles", "numbers", "settings")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    version: str
    started_ms: int
    draining: bool
    bundles: _containers.RepeatedScalarFieldContainer[int]
    numbers: _containers.ScalarMap[str, float]
    settings: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., started_ms: _Optional[int] = ..., draining: _Optional[bool] = ..., bundles: _Optional[_Iterable[int]] = ..., numbers: _Optional[_Mapping[str, float]] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ListConnectionsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListConnectionsResponse(_message.Message):
    __slots__ = ("connections", "more")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    connections: _containers.RepeatedCompositeFieldContainer[ConnectionInfo]
    more: bool
    def __init__(self, connections: _Optional[_Iterable[_Union[ConnectionInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class ConnectionInfo(_message.Message):
    __slots__ = ("id", "address", "principal", "client_id", "client", "since_ms", "last_ms", "calls", "calls_now", "produces", "reads")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CALLS_NOW_FIELD_NUMBER: _ClassVar[int]
    PRODUCES_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    principal: str
    client_id: str
    client: str
    since_ms: int
    last_ms: int
    calls: int
    calls_now: int
    produces: _containers.RepeatedScalarFieldContainer[str]
    reads: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., principal: _Optional[str] = ..., client_id: _Optional[str] = ..., client: _Optional[str] = ..., since_ms: _Optional[int] = ..., last_ms: _Optional[int] = ..., calls: _Optional[int] = ..., calls_now: _Optional[int] = ..., produces: _Optional[_Iterable[str]] = ..., reads: _Optional[_Iterable[str]] = ...) -> None: ...

class ListLagsRequest(_message.Message):
    __slots__ = ("topic", "group", "after", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    after: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListLagsResponse(_message.Message):
    __slots__ = ("lags", "more")
    LAGS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    lags: _containers.RepeatedCompositeFieldContainer[GroupLagInfo]
    more: bool
    def __init__(self, lags: _Optional[_Iterable[_Union[GroupLagInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class GroupLagInfo(_message.Message):
    __slots__ = ("group", "topic", "records", "members", "stuck_s", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STUCK_S_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    records: int
    members: int
    stuck_s: int
    partitions: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., records: _Optional[int] = ..., members: _Optional[int] = ..., stuck_s: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class SlowestCommitsRequest(_message.Message):
    __slots__ = ("topic_ids",)
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    topic_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SlowestCommitsResponse(_message.Message):
    __slots__ = ("commits", "coordinated")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    COORDINATED_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[SlowestCommit]
    coordinated: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, commits: _Optional[_Iterable[_Union[SlowestCommit, _Mapping]]] = ..., coordinated: _Optional[_Iterable[int]] = ...) -> None: ...

class SlowestCommit(_message.Message):
    __slots__ = ("topic_id", "partition", "offset", "group")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    offset: int
    group: str
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class CutInfo(_message.Message):
    __slots__ = ("name", "id", "status", "begun_ms", "taken_ms", "until_ms", "reason", "bundles")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    status: CutStatus
    begun_ms: int
    taken_ms: int
    until_ms: int
    reason: str
    bundles: _containers.RepeatedCompositeFieldContainer[CutBundleInfo]
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., status: _Optional[_Union[CutStatus, str]] = ..., begun_ms: _Optional[int] = ..., taken_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., reason: _Optional[str] = ..., bundles: _Optional[_Iterable[_Union[CutBundleInfo, _Mapping]]] = ...) -> None: ...

class CutBundleInfo(_message.Message):
    __slots__ = ("bundle", "base", "slot")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    base: int
    slot: int
    def __init__(self, bundle: _Optional[int] = ..., base: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class TakeCutRequest(_message.Message):
    __slots__ = ("name", "keep_ms", "nonce", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    keep_ms: int
    nonce: bytes
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., keep_ms: _Optional[int] = ..., nonce: _Optional[bytes] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class TakeCutResponse(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: CutInfo
    def __init__(self, cut: _Optional[_Union[CutInfo, _Mapping]] = ...) -> None: ...

class ListCutsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListCutsResponse(_message.Message):
    __slots__ = ("cuts",)
    CUTS_FIELD_NUMBER: _ClassVar[int]
    cuts: _containers.RepeatedCompositeFieldContainer[CutInfo]
    def __init__(self, cuts: _Optional[_Iterable[_Union[CutInfo, _Mapping]]] = ...) -> None: ...

class KeepCutRequest(_message.Message):
    __slots__ = ("name", "keep_ms", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    keep_ms: int
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., keep_ms: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class KeepCutResponse(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: CutInfo
    def __init__(self, cut: _Optional[_Union[CutInfo, _Mapping]] = ...) -> None: ...

class DropCutRequest(_message.Message):
    __slots__ = ("name", "id", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class DropCutResponse(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: CutInfo
    def __init__(self, cut: _Optional[_Union[CutInfo, _Mapping]] = ...) -> None: ...

class ListCutFilesRequest(_message.Message):
    __slots__ = ("name", "topic", "partition", "after", "limit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    partition: int
    after: str
    limit: int
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListCutFilesResponse(_message.Message):
    __slots__ = ("files", "more", "start", "parquet_end", "end", "partitions", "root")
    FILES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    PARQUET_END_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[CutFile]
    more: bool
    start: int
    parquet_end: int
    end: int
    partitions: int
    root: str
    def __init__(self, files: _Optional[_Iterable[_Union[CutFile, _Mapping]]] = ..., more: _Optional[bool] = ..., start: _Optional[int] = ..., parquet_end: _Optional[int] = ..., end: _Optional[int] = ..., partitions: _Optional[int] = ..., root: _Optional[str] = ...) -> None: ...

class CutFile(_message.Message):
    __slots__ = ("key", "held_key", "first_offset", "last_offset", "size")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HELD_KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: str
    held_key: str
    first_offset: int
    last_offset: int
    size: int
    def __init__(self, key: _Optional[str] = ..., held_key: _Optional[str] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ReadCutRequest(_message.Message):
    __slots__ = ("name", "topic", "partition", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    partition: int
    offset: int
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ReadCutResponse(_message.Message):
    __slots__ = ("batches", "next_offset", "end", "partitions", "start")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[CutBatch]
    next_offset: int
    end: int
    partitions: int
    start: int
    def __init__(self, batches: _Optional[_Iterable[_Union[CutBatch, _Mapping]]] = ..., next_offset: _Optional[int] = ..., end: _Optional[int] = ..., partitions: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class CutBatch(_message.Message):
    __slots__ = ("base_offset", "record_count", "crc", "data")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    record_count: int
    crc: int
    data: bytes
    def __init__(self, base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., crc: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class HoldForCutRequest(_message.Message):
    __slots__ = ("bundle", "cut", "step")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    cut: int
    step: CutStep
    def __init__(self, bundle: _Optional[int] = ..., cut: _Optional[int] = ..., step: _Optional[_Union[CutStep, str]] = ...) -> None: ...

class HoldForCutResponse(_message.Message):
    __slots__ = ("ok", "epoch", "slot", "versions", "base", "hold")
    OK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    epoch: int
    slot: int
    versions: _containers.RepeatedCompositeFieldContainer[PlacedVersion]
    base: int
    hold: int
    def __init__(self, ok: _Optional[bool] = ..., epoch: _Optional[int] = ..., slot: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[PlacedVersion, _Mapping]]] = ..., base: _Optional[int] = ..., hold: _Optional[int] = ...) -> None: ...

class PlacedVersion(_message.Message):
    __slots__ = ("topic_id", "partition", "version")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    version: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...
