from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_KIND_UNSPECIFIED: _ClassVar[SegmentKind]
    DATA: _ClassVar[SegmentKind]
    CLAIM: _ClassVar[SegmentKind]
    RELEASE: _ClassVar[SegmentKind]

class TopicState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIVING: _ClassVar[TopicState]
    REMOVED: _ClassVar[TopicState]
    TRASHED: _ClassVar[TopicState]

class CutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PENDING: _ClassVar[CutState]
    TAKEN: _ClassVar[CutState]
    ABANDONED: _ClassVar[CutState]
    DROPPED: _ClassVar[CutState]
SEGMENT_KIND_UNSPECIFIED: SegmentKind
DATA: SegmentKind
CLAIM: SegmentKind
RELEASE: SegmentKind
LIVING: TopicState
REMOVED: TopicState
TRASHED: TopicState
PENDING: CutState
TAKEN: CutState
ABANDONED: CutState
DROPPED: CutState

class SegmentIndex(_message.Message):
    __slots__ = ("bundle", "slot", "epoch", "kind", "writer", "put_id", "previous", "created_ms", "batches", "broker", "successor", "append_us", "seals", "opens")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    APPEND_US_FIELD_NUMBER: _ClassVar[int]
    SEALS_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    slot: int
    epoch: int
    kind: SegmentKind
    writer: bytes
    put_id: bytes
    previous: bytes
    created_ms: int
    batches: _containers.RepeatedCompositeFieldContainer[BatchEntry]
    broker: str
    successor: str
    append_us: int
    seals: _containers.RepeatedCompositeFieldContainer[PartitionSeal]
    opens: _containers.RepeatedCompositeFieldContainer[PartitionOpen]
    def __init__(self, bundle: _Optional[int] = ..., slot: _Optional[int] = ..., epoch: _Optional[int] = ..., kind: _Optional[_Union[SegmentKind, str]] = ..., writer: _Optional[bytes] = ..., put_id: _Optional[bytes] = ..., previous: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[BatchEntry, _Mapping]]] = ..., broker: _Optional[str] = ..., successor: _Optional[str] = ..., append_us: _Optional[int] = ..., seals: _Optional[_Iterable[_Union[PartitionSeal, _Mapping]]] = ..., opens: _Optional[_Iterable[_Union[PartitionOpen, _Mapping]]] = ...) -> None: ...

class PartitionSeal(_message.Message):
    __slots__ = ("topic_id", "partition", "move", "end", "target", "producers", "message_ids", "append_us")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_US_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    move: int
    end: int
    target: int
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    message_ids: _containers.RepeatedCompositeFieldContainer[MessageIds]
    append_us: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., move: _Optional[int] = ..., end: _Optional[int] = ..., target: _Optional[int] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., message_ids: _Optional[_Iterable[_Union[MessageIds, _Mapping]]] = ..., append_us: _Optional[int] = ...) -> None: ...

class PartitionOpen(_message.Message):
    __slots__ = ("topic_id", "partition", "move", "start", "source", "producers", "message_ids", "append_us")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_US_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    move: int
    start: int
    source: int
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    message_ids: _containers.RepeatedCompositeFieldContainer[MessageIds]
    append_us: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., move: _Optional[int] = ..., start: _Optional[int] = ..., source: _Optional[int] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., message_ids: _Optional[_Iterable[_Union[MessageIds, _Mapping]]] = ..., append_us: _Optional[int] = ...) -> None: ...

class BatchEntry(_message.Message):
    __slots__ = ("topic_id", "partition", "base_offset", "record_count", "position", "length", "crc", "timestamp_min_us", "timestamp_max_us", "producer_id", "producer_epoch", "sequence", "tag_summary", "message_ids", "ids_until_us", "sent_crc", "principal")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MIN_US_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MAX_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAG_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    IDS_UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    SENT_CRC_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    base_offset: int
    record_count: int
    position: int
    length: int
    crc: int
    timestamp_min_us: int
    timestamp_max_us: int
    producer_id: bytes
    producer_epoch: int
    sequence: int
    tag_summary: int
    message_ids: bytes
    ids_until_us: int
    sent_crc: int
    principal: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., position: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., timestamp_min_us: _Optional[int] = ..., timestamp_max_us: _Optional[int] = ..., producer_id: _Optional[bytes] = ..., producer_epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., tag_summary: _Optional[int] = ..., message_ids: _Optional[bytes] = ..., ids_until_us: _Optional[int] = ..., sent_crc: _Optional[int] = ..., principal: _Optional[int] = ...) -> None: ...

class LedgerState(_message.Message):
    __slots__ = ("slot", "epoch", "writer", "last_put_id", "released", "ends", "producers", "forgotten_to", "claims", "append_us", "message_ids", "seals", "opens")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    LAST_PUT_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_TO_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    APPEND_US_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    SEALS_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    epoch: int
    writer: bytes
    last_put_id: bytes
    released: bool
    ends: _containers.RepeatedCompositeFieldContainer[PartitionEnd]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    forgotten_to: int
    claims: _containers.RepeatedCompositeFieldContainer[ClaimNote]
    append_us: int
    message_ids: _containers.RepeatedCompositeFieldContainer[MessageIds]
    seals: _containers.RepeatedCompositeFieldContainer[PartitionSeal]
    opens: _containers.RepeatedCompositeFieldContainer[PartitionOpen]
    def __init__(self, slot: _Optional[int] = ..., epoch: _Optional[int] = ..., writer: _Optional[bytes] = ..., last_put_id: _Optional[bytes] = ..., released: _Optional[bool] = ..., ends: _Optional[_Iterable[_Union[PartitionEnd, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., forgotten_to: _Optional[int] = ..., claims: _Optional[_Iterable[_Union[ClaimNote, _Mapping]]] = ..., append_us: _Optional[int] = ..., message_ids: _Optional[_Iterable[_Union[MessageIds, _Mapping]]] = ..., seals: _Optional[_Iterable[_Union[PartitionSeal, _Mapping]]] = ..., opens: _Optional[_Iterable[_Union[PartitionOpen, _Mapping]]] = ...) -> None: ...

class MessageIds(_message.Message):
    __slots__ = ("topic_id", "partition", "base_offset", "until_us", "slot", "ids", "principal")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    base_offset: int
    until_us: int
    slot: int
    ids: bytes
    principal: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., until_us: _Optional[int] = ..., slot: _Optional[int] = ..., ids: _Optional[bytes] = ..., principal: _Optional[int] = ...) -> None: ...

class PartitionEnd(_message.Message):
    __slots__ = ("topic_id", "partition", "end")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    end: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("producer_id", "topic_id", "partition", "epoch", "last_slot", "batches", "principal")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_SLOT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    producer_id: bytes
    topic_id: int
    partition: int
    epoch: int
    last_slot: int
    batches: _containers.RepeatedCompositeFieldContainer[ProducerBatch]
    principal: int
    def __init__(self, producer_id: _Optional[bytes] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., epoch: _Optional[int] = ..., last_slot: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[ProducerBatch, _Mapping]]] = ..., principal: _Optional[int] = ...) -> None: ...

class ProducerBatch(_message.Message):
    __slots__ = ("sequence", "record_count", "base_offset", "slot", "crc")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    record_count: int
    base_offset: int
    slot: int
    crc: int
    def __init__(self, sequence: _Optional[int] = ..., record_count: _Optional[int] = ..., base_offset: _Optional[int] = ..., slot: _Optional[int] = ..., crc: _Optional[int] = ...) -> None: ...

class ClaimNote(_message.Message):
    __slots__ = ("slot", "epoch", "created_ms", "broker")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    slot: int
    epoch: int
    created_ms: int
    broker: str
    def __init__(self, slot: _Optional[int] = ..., epoch: _Optional[int] = ..., created_ms: _Optional[int] = ..., broker: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("bundle", "number", "put_id", "created_ms", "state", "trim_slot", "finished_plan", "planned_slot", "snapshot_plan", "metadata_offset", "partitions", "removed_topics", "snapshot_bytes", "topic_facts", "witnessed_plan", "witnessed_ms", "pins")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TRIM_SLOT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PLAN_FIELD_NUMBER: _ClassVar[int]
    PLANNED_SLOT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_PLAN_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FACTS_FIELD_NUMBER: _ClassVar[int]
    WITNESSED_PLAN_FIELD_NUMBER: _ClassVar[int]
    WITNESSED_MS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    number: int
    put_id: bytes
    created_ms: int
    state: LedgerState
    trim_slot: int
    finished_plan: int
    planned_slot: int
    snapshot_plan: int
    metadata_offset: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionCheckpoint]
    removed_topics: _containers.RepeatedCompositeFieldContainer[RemovedTopic]
    snapshot_bytes: int
    topic_facts: _containers.RepeatedCompositeFieldContainer[TopicFact]
    witnessed_plan: int
    witnessed_ms: int
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, bundle: _Optional[int] = ..., number: _Optional[int] = ..., put_id: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., state: _Optional[_Union[LedgerState, _Mapping]] = ..., trim_slot: _Optional[int] = ..., finished_plan: _Optional[int] = ..., planned_slot: _Optional[int] = ..., snapshot_plan: _Optional[int] = ..., metadata_offset: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionCheckpoint, _Mapping]]] = ..., removed_topics: _Optional[_Iterable[_Union[RemovedTopic, _Mapping]]] = ..., snapshot_bytes: _Optional[int] = ..., topic_facts: _Optional[_Iterable[_Union[TopicFact, _Mapping]]] = ..., witnessed_plan: _Optional[int] = ..., witnessed_ms: _Optional[int] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("cut", "base")
    CUT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    cut: int
    base: int
    def __init__(self, cut: _Optional[int] = ..., base: _Optional[int] = ...) -> None: ...

class TopicFact(_message.Message):
    __slots__ = ("topic_id", "version", "held", "table", "table_of_versions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_OF_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    version: int
    held: bool
    table: int
    table_of_versions: bool
    def __init__(self, topic_id: _Optional[int] = ..., version: _Optional[int] = ..., held: _Optional[bool] = ..., table: _Optional[int] = ..., table_of_versions: _Optional[bool] = ...) -> None: ...

class PartitionCheckpoint(_message.Message):
    __slots__ = ("topic_id", "partition", "log_start", "parquet_start", "parquet_end", "newest_page", "parked", "deleted_to", "lost", "frozen", "forgotten", "taken_over", "appended_us", "table_start", "table_version", "merged")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    PARQUET_START_FIELD_NUMBER: _ClassVar[int]
    PARQUET_END_FIELD_NUMBER: _ClassVar[int]
    NEWEST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    DELETED_TO_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    TABLE_START_FIELD_NUMBER: _ClassVar[int]
    TABLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    log_start: int
    parquet_start: int
    parquet_end: int
    newest_page: int
    parked: Parked
    deleted_to: int
    lost: _containers.RepeatedCompositeFieldContainer[LostRecords]
    frozen: int
    forgotten: bool
    taken_over: int
    appended_us: int
    table_start: int
    table_version: int
    merged: MergedFiles
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., log_start: _Optional[int] = ..., parquet_start: _Optional[int] = ..., parquet_end: _Optional[int] = ..., newest_page: _Optional[int] = ..., parked: _Optional[_Union[Parked, _Mapping]] = ..., deleted_to: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[LostRecords, _Mapping]]] = ..., frozen: _Optional[int] = ..., forgotten: _Optional[bool] = ..., taken_over: _Optional[int] = ..., appended_us: _Optional[int] = ..., table_start: _Optional[int] = ..., table_version: _Optional[int] = ..., merged: _Optional[_Union[MergedFiles, _Mapping]] = ...) -> None: ...

class MergedFiles(_message.Message):
    __slots__ = ("number", "put_id", "first")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    number: int
    put_id: bytes
    first: int
    def __init__(self, number: _Optional[int] = ..., put_id: _Optional[bytes] = ..., first: _Optional[int] = ...) -> None: ...

class MergedList(_message.Message):
    __slots__ = ("topic_id", "partition", "number", "put_id", "files")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    number: int
    put_id: bytes
    files: _containers.RepeatedCompositeFieldContainer[ParquetFile]
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., number: _Optional[int] = ..., put_id: _Optional[bytes] = ..., files: _Optional[_Iterable[_Union[ParquetFile, _Mapping]]] = ...) -> None: ...

class LostRecords(_message.Message):
    __slots__ = ("first_offset", "last_offset", "object_key", "reason", "decided_by", "decided_ms")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OBJECT_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    object_key: str
    reason: str
    decided_by: str
    decided_ms: int
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., object_key: _Optional[str] = ..., reason: _Optional[str] = ..., decided_by: _Optional[str] = ..., decided_ms: _Optional[int] = ...) -> None: ...

class Parked(_message.Message):
    __slots__ = ("plan", "first_slot", "object_key", "reason")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    FIRST_SLOT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    plan: int
    first_slot: int
    object_key: str
    reason: str
    def __init__(self, plan: _Optional[int] = ..., first_slot: _Optional[int] = ..., object_key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RemovedTopic(_message.Message):
    __slots__ = ("topic_id", "topic", "named_at_plan", "files_deleted", "barrier_ms")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAMED_AT_PLAN_FIELD_NUMBER: _ClassVar[int]
    FILES_DELETED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_MS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    topic: str
    named_at_plan: int
    files_deleted: bool
    barrier_ms: int
    def __init__(self, topic_id: _Optional[int] = ..., topic: _Optional[str] = ..., named_at_plan: _Optional[int] = ..., files_deleted: _Optional[bool] = ..., barrier_ms: _Optional[int] = ...) -> None: ...

class CompactionPlan(_message.Message):
    __slots__ = ("bundle", "number", "put_id", "created_ms", "checkpoint", "last_slot", "slots", "files", "lagging", "internal", "previous_snapshot", "trim_slot", "freezes", "takeovers", "metadata_offset")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LAST_SLOT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TRIM_SLOT_FIELD_NUMBER: _ClassVar[int]
    FREEZES_FIELD_NUMBER: _ClassVar[int]
    TAKEOVERS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    number: int
    put_id: bytes
    created_ms: int
    checkpoint: int
    last_slot: int
    slots: _containers.RepeatedCompositeFieldContainer[PlannedSlot]
    files: _containers.RepeatedCompositeFieldContainer[PlannedFile]
    lagging: _containers.RepeatedCompositeFieldContainer[PlannedSlot]
    internal: _containers.RepeatedCompositeFieldContainer[PlannedInternal]
    previous_snapshot: int
    trim_slot: int
    freezes: _containers.RepeatedCompositeFieldContainer[PlannedFreeze]
    takeovers: _containers.RepeatedCompositeFieldContainer[PlannedTakeover]
    metadata_offset: int
    def __init__(self, bundle: _Optional[int] = ..., number: _Optional[int] = ..., put_id: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., checkpoint: _Optional[int] = ..., last_slot: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[PlannedSlot, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[PlannedFile, _Mapping]]] = ..., lagging: _Optional[_Iterable[_Union[PlannedSlot, _Mapping]]] = ..., internal: _Optional[_Iterable[_Union[PlannedInternal, _Mapping]]] = ..., previous_snapshot: _Optional[int] = ..., trim_slot: _Optional[int] = ..., freezes: _Optional[_Iterable[_Union[PlannedFreeze, _Mapping]]] = ..., takeovers: _Optional[_Iterable[_Union[PlannedTakeover, _Mapping]]] = ..., metadata_offset: _Optional[int] = ...) -> None: ...

class PlannedSlot(_message.Message):
    __slots__ = ("slot", "put_id", "kind", "tail_length", "stored_ms")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TAIL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    STORED_MS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    put_id: bytes
    kind: SegmentKind
    tail_length: int
    stored_ms: int
    def __init__(self, slot: _Optional[int] = ..., put_id: _Optional[bytes] = ..., kind: _Optional[_Union[SegmentKind, str]] = ..., tail_length: _Optional[int] = ..., stored_ms: _Optional[int] = ...) -> None: ...

class PlannedFile(_message.Message):
    __slots__ = ("topic_id", "topic", "partition", "first_offset", "last_offset", "key", "slots", "first_slot_after", "bloom_columns", "source_bytes", "lost", "has_appended", "appended_floor_us", "row_group_bytes", "schema")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SLOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    BLOOM_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    HAS_APPENDED_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FLOOR_US_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    key: str
    slots: _containers.RepeatedScalarFieldContainer[int]
    first_slot_after: int
    bloom_columns: _containers.RepeatedScalarFieldContainer[str]
    source_bytes: int
    lost: _containers.RepeatedCompositeFieldContainer[LostRecords]
    has_appended: bool
    appended_floor_us: int
    row_group_bytes: int
    schema: PlannedSchema
    def __init__(self, topic_id: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., key: _Optional[str] = ..., slots: _Optional[_Iterable[int]] = ..., first_slot_after: _Optional[int] = ..., bloom_columns: _Optional[_Iterable[str]] = ..., source_bytes: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[LostRecords, _Mapping]]] = ..., has_appended: _Optional[bool] = ..., appended_floor_us: _Optional[int] = ..., row_group_bytes: _Optional[int] = ..., schema: _Optional[_Union[PlannedSchema, _Mapping]] = ...) -> None: ...

class PlannedSchema(_message.Message):
    __slots__ = ("subject", "framing", "version", "rules")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    FRAMING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    subject: str
    framing: str
    version: int
    rules: int
    def __init__(self, subject: _Optional[str] = ..., framing: _Optional[str] = ..., version: _Optional[int] = ..., rules: _Optional[int] = ...) -> None: ...

class PlannedInternal(_message.Message):
    __slots__ = ("topic_id", "topic", "partition", "end", "slots")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    topic: str
    partition: int
    end: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., end: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class PlannedFreeze(_message.Message):
    __slots__ = ("topic_id", "partition", "move")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    move: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., move: _Optional[int] = ...) -> None: ...

class PlannedTakeover(_message.Message):
    __slots__ = ("counters", "files")
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    counters: PartitionCheckpoint
    files: _containers.RepeatedCompositeFieldContainer[ParquetFile]
    def __init__(self, counters: _Optional[_Union[PartitionCheckpoint, _Mapping]] = ..., files: _Optional[_Iterable[_Union[ParquetFile, _Mapping]]] = ...) -> None: ...

class FilePage(_message.Message):
    __slots__ = ("bundle", "plan", "put_id", "partitions")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    plan: int
    put_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionFiles]
    def __init__(self, bundle: _Optional[int] = ..., plan: _Optional[int] = ..., put_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[PartitionFiles, _Mapping]]] = ...) -> None: ...

class PartitionFiles(_message.Message):
    __slots__ = ("topic_id", "partition", "files", "previous_page", "previous_count")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_PAGE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    files: _containers.RepeatedCompositeFieldContainer[ParquetFile]
    previous_page: int
    previous_count: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., files: _Optional[_Iterable[_Union[ParquetFile, _Mapping]]] = ..., previous_page: _Optional[int] = ..., previous_count: _Optional[int] = ...) -> None: ...

class ParquetFile(_message.Message):
    __slots__ = ("key", "first_offset", "last_offset", "size", "timestamp_min_us", "timestamp_max_us", "plan", "committed_ms", "appended_min_us", "appended_max_us", "typed")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MIN_US_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MAX_US_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    APPENDED_MIN_US_FIELD_NUMBER: _ClassVar[int]
    APPENDED_MAX_US_FIELD_NUMBER: _ClassVar[int]
    TYPED_FIELD_NUMBER: _ClassVar[int]
    key: str
    first_offset: int
    last_offset: int
    size: int
    timestamp_min_us: int
    timestamp_max_us: int
    plan: int
    committed_ms: int
    appended_min_us: int
    appended_max_us: int
    typed: bool
    def __init__(self, key: _Optional[str] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., size: _Optional[int] = ..., timestamp_min_us: _Optional[int] = ..., timestamp_max_us: _Optional[int] = ..., plan: _Optional[int] = ..., committed_ms: _Optional[int] = ..., appended_min_us: _Optional[int] = ..., appended_max_us: _Optional[int] = ..., typed: _Optional[bool] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("bundle", "plan", "put_id", "partitions")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    plan: int
    put_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[SnapshotPartition]
    def __init__(self, bundle: _Optional[int] = ..., plan: _Optional[int] = ..., put_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[SnapshotPartition, _Mapping]]] = ...) -> None: ...

class SnapshotPartition(_message.Message):
    __slots__ = ("topic_id", "partition", "end", "records")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    end: int
    records: _containers.RepeatedCompositeFieldContainer[SnapshotRecord]
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., end: _Optional[int] = ..., records: _Optional[_Iterable[_Union[SnapshotRecord, _Mapping]]] = ...) -> None: ...

class SnapshotRecord(_message.Message):
    __slots__ = ("offset", "key", "value", "timestamp_us")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    offset: int
    key: bytes
    value: bytes
    timestamp_us: int
    def __init__(self, offset: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class TopicRecord(_message.Message):
    __slots__ = ("topic_id", "name", "bundles", "settings", "state", "created_ms", "altered_ms", "moves", "nonce", "deleted_ms", "delete_grace_ms", "undeleted_ms", "changes")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ALTERED_MS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DELETED_MS_FIELD_NUMBER: _ClassVar[int]
    DELETE_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    UNDELETED_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    name: str
    bundles: _containers.RepeatedScalarFieldContainer[int]
    settings: _containers.ScalarMap[str, str]
    state: TopicState
    created_ms: int
    altered_ms: int
    moves: _containers.RepeatedCompositeFieldContainer[PartitionMove]
    nonce: bytes
    deleted_ms: int
    delete_grace_ms: int
    undeleted_ms: int
    changes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, topic_id: _Optional[int] = ..., name: _Optional[str] = ..., bundles: _Optional[_Iterable[int]] = ..., settings: _Optional[_Mapping[str, str]] = ..., state: _Optional[_Union[TopicState, str]] = ..., created_ms: _Optional[int] = ..., altered_ms: _Optional[int] = ..., moves: _Optional[_Iterable[_Union[PartitionMove, _Mapping]]] = ..., nonce: _Optional[bytes] = ..., deleted_ms: _Optional[int] = ..., delete_grace_ms: _Optional[int] = ..., undeleted_ms: _Optional[int] = ..., changes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PartitionMove(_message.Message):
    __slots__ = ("partition", "move", "source", "before", "ended", "count")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    move: int
    source: int
    before: int
    ended: bool
    count: int
    def __init__(self, partition: _Optional[int] = ..., move: _Optional[int] = ..., source: _Optional[int] = ..., before: _Optional[int] = ..., ended: _Optional[bool] = ..., count: _Optional[int] = ...) -> None: ...

class CutRecord(_message.Message):
    __slots__ = ("id", "name", "state", "begun_ms", "taken_ms", "until_ms", "reason", "nonce", "holders", "automatic")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    AUTOMATIC_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: CutState
    begun_ms: int
    taken_ms: int
    until_ms: int
    reason: str
    nonce: bytes
    holders: _containers.RepeatedScalarFieldContainer[bytes]
    automatic: bool
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[_Union[CutState, str]] = ..., begun_ms: _Optional[int] = ..., taken_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., reason: _Optional[str] = ..., nonce: _Optional[bytes] = ..., holders: _Optional[_Iterable[bytes]] = ..., automatic: _Optional[bool] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("id", "put_id", "name", "created_ms", "bundles")
    ID_FIELD_NUMBER: _ClassVar[int]
    PUT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    id: int
    put_id: bytes
    name: str
    created_ms: int
    bundles: _containers.RepeatedCompositeFieldContainer[CutBundle]
    def __init__(self, id: _Optional[int] = ..., put_id: _Optional[bytes] = ..., name: _Optional[str] = ..., created_ms: _Optional[int] = ..., bundles: _Optional[_Iterable[_Union[CutBundle, _Mapping]]] = ...) -> None: ...

class CutBundle(_message.Message):
    __slots__ = ("bundle", "base", "slot", "partitions")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    base: int
    slot: int
    partitions: _containers.RepeatedCompositeFieldContainer[CutPartition]
    def __init__(self, bundle: _Optional[int] = ..., base: _Optional[int] = ..., slot: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[CutPartition, _Mapping]]] = ...) -> None: ...

class CutPartition(_message.Message):
    __slots__ = ("topic_id", "partition", "version")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    version: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...
