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
DURABLE: Acks
RECEIVED: Acks
STAY: GroupStep
JOIN: GroupStep
LEAVE: GroupStep
LEAVE_FOR_A_WHILE: GroupStep
EMPTY: GroupState
RECONCILING: GroupState
STABLE: GroupState

class Error(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms", "owner", "object_key")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OBJECT_KEY_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry_after_ms: int
    owner: str
    object_key: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., owner: _Optional[str] = ..., object_key: _Optional[str] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("header", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: ProduceHeader
    payload: bytes
    def __init__(self, header: _Optional[_Union[ProduceHeader, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ProduceHeader(_message.Message):
    __slots__ = ("acks", "batches")
    ACKS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    acks: Acks
    batches: _containers.RepeatedCompositeFieldContainer[ProduceBatch]
    def __init__(self, acks: _Optional[_Union[Acks, str]] = ..., batches: _Optional[_Iterable[_Union[ProduceBatch, _Mapping]]] = ...) -> None: ...

class ProduceBatch(_message.Message):
    __slots__ = ("topic", "topic_id", "partition", "length", "crc", "record_count", "timestamp_min_us", "timestamp_max_us", "schema", "producer")
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
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., record_count: _Optional[int] = ..., timestamp_min_us: _Optional[int] = ..., timestamp_max_us: _Optional[int] = ..., schema: _Optional[int] = ..., producer: _Optional[_Union[ProducerSession, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ProduceResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ProduceResult, _Mapping]]] = ...) -> None: ...

class ProduceResult(_message.Message):
    __slots__ = ("base_offset", "topic_id", "error")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    topic_id: int
    error: Error
    def __init__(self, base_offset: _Optional[int] = ..., topic_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("topic", "topic_id", "partition", "high_watermark", "log_start", "batches", "error")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: int
    partition: int
    high_watermark: int
    log_start: int
    batches: _containers.RepeatedCompositeFieldContainer[FetchedBatch]
    error: Error
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_start: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[FetchedBatch, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class FetchedBatch(_message.Message):
    __slots__ = ("base_offset", "record_count", "length", "crc", "object", "position")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    record_count: int
    length: int
    crc: int
    object: int
    position: int
    def __init__(self, base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., object: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("topic", "partition", "earliest", "latest", "timestamp_us", "durable")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    earliest: bool
    latest: bool
    timestamp_us: int
    durable: bool
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_us: _Optional[int] = ..., durable: _Optional[bool] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OffsetResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OffsetResult, _Mapping]]] = ...) -> None: ...

class OffsetResult(_message.Message):
    __slots__ = ("offset", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    error: Error
    def __init__(self, offset: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

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

class OpenProducerRequest(_message.Message):
    __slots__ = ("partitions", "producer_id")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    producer_id: bytes
    def __init__(self, partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ..., producer_id: _Optional[bytes] = ...) -> None: ...

class OpenProducerResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OpenedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[OpenedPartition, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("id", "address", "alive")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    alive: bool
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., alive: _Optional[bool] = ...) -> None: ...

class BundleInfo(_message.Message):
    __slots__ = ("bundle", "owner", "epoch", "trouble")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    owner: str
    epoch: int
    trouble: str
    def __init__(self, bundle: _Optional[int] = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class DescribeTopicsRequest(_message.Message):
    __slots__ = ("topics", "auto_create", "fresh")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    AUTO_CREATE_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    auto_create: bool
    fresh: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., auto_create: _Optional[bool] = ..., fresh: _Optional[bool] = ...) -> None: ...

class DescribeTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "settings", "created_ms", "error")
    class SettingsEntry(_message.Message):
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
    name: str
    topic_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionInfo]
    settings: _containers.ScalarMap[str, str]
    created_ms: int
    error: Error
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[PartitionInfo, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ..., created_ms: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class PartitionInfo(_message.Message):
    __slots__ = ("bundle", "owner")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    owner: str
    def __init__(self, bundle: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "settings", "forwarded")
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
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    settings: _containers.ScalarMap[str, str]
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class CreateTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicInfo
    def __init__(self, topic: _Optional[_Union[TopicInfo, _Mapping]] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "set", "unset", "forwarded")
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
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    set: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., set: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class AlterTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicInfo
    def __init__(self, topic: _Optional[_Union[TopicInfo, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name", "forwarded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    name: str
    forwarded: bool
    def __init__(self, name: _Optional[str] = ..., forwarded: _Optional[bool] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("group", "member_id", "step", "owned", "max_wait_ms", "subscription", "seen_epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SEEN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    step: GroupStep
    owned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    max_wait_ms: int
    subscription: GroupSubscription
    seen_epoch: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., step: _Optional[_Union[GroupStep, str]] = ..., owned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., max_wait_ms: _Optional[int] = ..., subscription: _Optional[_Union[GroupSubscription, _Mapping]] = ..., seen_epoch: _Optional[int] = ...) -> None: ...

class GroupSubscription(_message.Message):
    __slots__ = ("topics", "topic_pattern", "assignor", "instance_id", "rack", "client_id", "session_timeout_ms", "rebalance_timeout_ms")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_pattern: str
    assignor: str
    instance_id: str
    rack: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., topic_pattern: _Optional[str] = ..., assignor: _Optional[str] = ..., instance_id: _Optional[str] = ..., rack: _Optional[str] = ..., client_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ...) -> None: ...

class GroupHeartbeatResponse(_message.Message):
    __slots__ = ("group_epoch", "assigned", "session_timeout_ms", "heartbeat_interval_ms")
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    group_epoch: int
    assigned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    def __init__(self, group_epoch: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., session_timeout_ms: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "member_id", "commits")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    commits: _containers.RepeatedCompositeFieldContainer[OffsetCommit]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., commits: _Optional[_Iterable[_Union[OffsetCommit, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("group", "partitions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, group: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("group", "resets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    resets: _containers.RepeatedCompositeFieldContainer[OffsetReset]
    def __init__(self, group: _Optional[str] = ..., resets: _Optional[_Iterable[_Union[OffsetReset, _Mapping]]] = ...) -> None: ...

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

class ListGroupsRequest(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    def __init__(self, partition: _Optional[int] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "partitions")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    partitions: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ..., partitions: _Optional[int] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("group", "state", "epoch", "assignor", "members", "committed", "member_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: GroupState
    epoch: int
    assignor: str
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    committed: _containers.RepeatedCompositeFieldContainer[CommittedPartition]
    member_count: int
    def __init__(self, group: _Optional[str] = ..., state: _Optional[_Union[GroupState, str]] = ..., epoch: _Optional[int] = ..., assignor: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[CommittedPartition, _Mapping]]] = ..., member_count: _Optional[int] = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("member_id", "subscription", "assigned", "owned", "heartbeat_age_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    subscription: GroupSubscription
    assigned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    owned: _containers.RepeatedCompositeFieldContainer[GivenPartition]
    heartbeat_age_ms: int
    def __init__(self, member_id: _Optional[str] = ..., subscription: _Optional[_Union[GroupSubscription, _Mapping]] = ..., assigned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., owned: _Optional[_Iterable[_Union[GivenPartition, _Mapping]]] = ..., heartbeat_age_ms: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
