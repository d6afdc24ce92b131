from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Floor(_message.Message):
    __slots__ = ("version", "epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("version", "epoch", "bare_epoch", "empty_since_ms", "assignor", "resets", "principal")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BARE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EMPTY_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    bare_epoch: int
    empty_since_ms: int
    assignor: str
    resets: _containers.RepeatedCompositeFieldContainer[Reset]
    principal: int
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., bare_epoch: _Optional[int] = ..., empty_since_ms: _Optional[int] = ..., assignor: _Optional[str] = ..., resets: _Optional[_Iterable[_Union[Reset, _Mapping]]] = ..., principal: _Optional[int] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("nonce", "refused")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    refused: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., refused: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("version", "topics", "topic_pattern", "assignor", "instance_id", "rack", "client_id", "session_timeout_ms", "rebalance_timeout_ms", "away", "held", "filter", "kafka_host")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    KAFKA_HOST_FIELD_NUMBER: _ClassVar[int]
    version: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_pattern: str
    assignor: str
    instance_id: str
    rack: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    away: bool
    held: _containers.RepeatedCompositeFieldContainer[HeldTopic]
    filter: str
    kafka_host: str
    def __init__(self, version: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., topic_pattern: _Optional[str] = ..., assignor: _Optional[str] = ..., instance_id: _Optional[str] = ..., rack: _Optional[str] = ..., client_id: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., away: _Optional[bool] = ..., held: _Optional[_Iterable[_Union[HeldTopic, _Mapping]]] = ..., filter: _Optional[str] = ..., kafka_host: _Optional[str] = ...) -> None: ...

class HeldTopic(_message.Message):
    __slots__ = ("topic_id", "topic", "partitions", "epochs", "withdrawn", "withdrawn_in")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_IN_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    withdrawn: _containers.RepeatedScalarFieldContainer[int]
    withdrawn_in: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[int] = ..., topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., epochs: _Optional[_Iterable[int]] = ..., withdrawn: _Optional[_Iterable[int]] = ..., withdrawn_in: _Optional[_Iterable[int]] = ...) -> None: ...

class Offset(_message.Message):
    __slots__ = ("version", "offset", "metadata", "commit_ms", "epoch", "counter", "topic")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    version: int
    offset: int
    metadata: str
    commit_ms: int
    epoch: int
    counter: int
    topic: str
    def __init__(self, version: _Optional[int] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ..., commit_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., counter: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("version", "transactional_id", "coordinator", "staged_ms", "offsets")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    STAGED_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    version: int
    transactional_id: str
    coordinator: int
    staged_ms: int
    offsets: _containers.RepeatedCompositeFieldContainer[PendingOffset]
    def __init__(self, version: _Optional[int] = ..., transactional_id: _Optional[str] = ..., coordinator: _Optional[int] = ..., staged_ms: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[PendingOffset, _Mapping]]] = ...) -> None: ...

class PendingOffset(_message.Message):
    __slots__ = ("topic_id", "partition", "topic", "offset", "metadata", "epoch", "counter")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    topic: str
    offset: int
    metadata: str
    epoch: int
    counter: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., topic: _Optional[str] = ..., offset: _Optional[int] = ..., metadata: _Optional[str] = ..., epoch: _Optional[int] = ..., counter: _Optional[int] = ...) -> None: ...

class Classic(_message.Message):
    __slots__ = ("version", "generation", "given", "protocol_type", "protocol", "leader", "members", "empty_since_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EMPTY_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    generation: int
    given: int
    protocol_type: str
    protocol: str
    leader: str
    members: _containers.RepeatedCompositeFieldContainer[ClassicMember]
    empty_since_ms: int
    def __init__(self, version: _Optional[int] = ..., generation: _Optional[int] = ..., given: _Optional[int] = ..., protocol_type: _Optional[str] = ..., protocol: _Optional[str] = ..., leader: _Optional[str] = ..., members: _Optional[_Iterable[_Union[ClassicMember, _Mapping]]] = ..., empty_since_ms: _Optional[int] = ...) -> None: ...

class ClassicMember(_message.Message):
    __slots__ = ("id", "instance_id", "client_id", "client_host", "session_timeout_ms", "rebalance_timeout_ms", "protocols", "assignment")
    ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_HOST_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    instance_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: _containers.RepeatedCompositeFieldContainer[ClassicProtocol]
    assignment: bytes
    def __init__(self, id: _Optional[str] = ..., instance_id: _Optional[str] = ..., client_id: _Optional[str] = ..., client_host: _Optional[str] = ..., session_timeout_ms: _Optional[int] = ..., rebalance_timeout_ms: _Optional[int] = ..., protocols: _Optional[_Iterable[_Union[ClassicProtocol, _Mapping]]] = ..., assignment: _Optional[bytes] = ...) -> None: ...

class ClassicProtocol(_message.Message):
    __slots__ = ("name", "metadata")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    metadata: bytes
    def __init__(self, name: _Optional[str] = ..., metadata: _Optional[bytes] = ...) -> None: ...
