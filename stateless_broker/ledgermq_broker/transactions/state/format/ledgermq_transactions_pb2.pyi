from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDINARY: _ClassVar[Kind]
    TWO_PHASE: _ClassVar[Kind]
    HALF_MESSAGE: _ClassVar[Kind]

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNDECIDED: _ClassVar[State]
    COMMITTED: _ClassVar[State]
    ABORTED: _ClassVar[State]
    PREPARED: _ClassVar[State]
    COMMITTED_BY_OPERATOR: _ClassVar[State]
    ABORTED_BY_OPERATOR: _ClassVar[State]
    UNRESOLVED: _ClassVar[State]
ORDINARY: Kind
TWO_PHASE: Kind
HALF_MESSAGE: Kind
UNDECIDED: State
COMMITTED: State
ABORTED: State
PREPARED: State
COMMITTED_BY_OPERATOR: State
ABORTED_BY_OPERATOR: State
UNRESOLVED: State

class Id(_message.Message):
    __slots__ = ("version", "producer_id", "epoch", "kind", "timeout_ms", "changed_ms", "number", "state", "complete", "parts", "missing", "check_group", "checks", "former", "nonce", "counted", "principal", "kept_ms", "content", "next_producer")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_MS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    CHECK_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    FORMER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    KEPT_MS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NEXT_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    version: int
    producer_id: bytes
    epoch: int
    kind: Kind
    timeout_ms: int
    changed_ms: int
    number: int
    state: State
    complete: bool
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    missing: _containers.RepeatedScalarFieldContainer[int]
    check_group: str
    checks: int
    former: Former
    nonce: bytes
    counted: bytes
    principal: int
    kept_ms: int
    content: bytes
    next_producer: bytes
    def __init__(self, version: _Optional[int] = ..., producer_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., timeout_ms: _Optional[int] = ..., changed_ms: _Optional[int] = ..., number: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., complete: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., missing: _Optional[_Iterable[int]] = ..., check_group: _Optional[str] = ..., checks: _Optional[int] = ..., former: _Optional[_Union[Former, _Mapping]] = ..., nonce: _Optional[bytes] = ..., counted: _Optional[bytes] = ..., principal: _Optional[int] = ..., kept_ms: _Optional[int] = ..., content: _Optional[bytes] = ..., next_producer: _Optional[bytes] = ...) -> None: ...

class Former(_message.Message):
    __slots__ = ("epoch", "number", "state", "content")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    number: int
    state: State
    content: bytes
    def __init__(self, epoch: _Optional[int] = ..., number: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., content: _Optional[bytes] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("bundle", "counts", "groups")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    bundle: int
    counts: _containers.RepeatedCompositeFieldContainer[Count]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bundle: _Optional[int] = ..., counts: _Optional[_Iterable[_Union[Count, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class Count(_message.Message):
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

class Transaction(_message.Message):
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

class References(_message.Message):
    __slots__ = ("version", "transaction", "staged_ms", "references", "principal")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    STAGED_MS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    version: int
    transaction: Transaction
    staged_ms: int
    references: _containers.RepeatedCompositeFieldContainer[Reference]
    principal: int
    def __init__(self, version: _Optional[int] = ..., transaction: _Optional[_Union[Transaction, _Mapping]] = ..., staged_ms: _Optional[int] = ..., references: _Optional[_Iterable[_Union[Reference, _Mapping]]] = ..., principal: _Optional[int] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("branch", "topic_id", "partition", "sequence", "offset", "record_count", "length", "crc", "timestamp_min_us", "timestamp_max_us")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MIN_US_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MAX_US_FIELD_NUMBER: _ClassVar[int]
    branch: bytes
    topic_id: int
    partition: int
    sequence: int
    offset: int
    record_count: int
    length: int
    crc: int
    timestamp_min_us: int
    timestamp_max_us: int
    def __init__(self, branch: _Optional[bytes] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., sequence: _Optional[int] = ..., offset: _Optional[int] = ..., record_count: _Optional[int] = ..., length: _Optional[int] = ..., crc: _Optional[int] = ..., timestamp_min_us: _Optional[int] = ..., timestamp_max_us: _Optional[int] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("version", "transaction", "outcome", "finished", "part", "copied")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    version: int
    transaction: Transaction
    outcome: State
    finished: bool
    part: Part
    copied: _containers.RepeatedCompositeFieldContainer[Count]
    def __init__(self, version: _Optional[int] = ..., transaction: _Optional[_Union[Transaction, _Mapping]] = ..., outcome: _Optional[_Union[State, str]] = ..., finished: _Optional[bool] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., copied: _Optional[_Iterable[_Union[Count, _Mapping]]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("version", "epoch", "number", "places", "groups", "bundles", "renews")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    RENEWS_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    number: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    groups: _containers.RepeatedScalarFieldContainer[str]
    bundles: _containers.RepeatedScalarFieldContainer[int]
    renews: bool
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ..., bundles: _Optional[_Iterable[int]] = ..., renews: _Optional[bool] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ...) -> None: ...

class Last(_message.Message):
    __slots__ = ("version", "transaction", "next")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    version: int
    transaction: Transaction
    next: _containers.RepeatedCompositeFieldContainer[Next]
    def __init__(self, version: _Optional[int] = ..., transaction: _Optional[_Union[Transaction, _Mapping]] = ..., next: _Optional[_Iterable[_Union[Next, _Mapping]]] = ...) -> None: ...

class Next(_message.Message):
    __slots__ = ("topic_id", "partition", "sequence")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    partition: int
    sequence: int
    def __init__(self, topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...
