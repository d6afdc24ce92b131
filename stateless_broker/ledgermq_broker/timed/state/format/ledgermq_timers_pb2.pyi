from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Watermark(_message.Message):
    __slots__ = ("version", "due_us", "offset", "row")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    version: int
    due_us: int
    offset: int
    row: int
    def __init__(self, version: _Optional[int] = ..., due_us: _Optional[int] = ..., offset: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...

class Flushed(_message.Message):
    __slots__ = ("version", "begin_offset", "end_offsets", "horizons_us")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    HORIZONS_US_FIELD_NUMBER: _ClassVar[int]
    version: int
    begin_offset: int
    end_offsets: _containers.RepeatedScalarFieldContainer[int]
    horizons_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., begin_offset: _Optional[int] = ..., end_offsets: _Optional[_Iterable[int]] = ..., horizons_us: _Optional[_Iterable[int]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("version", "from_us", "to_us", "begin_offset", "turning", "records", "size_bytes", "topic_ids", "topic_records", "principals", "principal_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    TO_US_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TURNING_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    from_us: int
    to_us: int
    begin_offset: int
    turning: bool
    records: int
    size_bytes: int
    topic_ids: _containers.RepeatedScalarFieldContainer[int]
    topic_records: _containers.RepeatedScalarFieldContainer[int]
    principals: _containers.RepeatedScalarFieldContainer[int]
    principal_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., from_us: _Optional[int] = ..., to_us: _Optional[int] = ..., begin_offset: _Optional[int] = ..., turning: _Optional[bool] = ..., records: _Optional[int] = ..., size_bytes: _Optional[int] = ..., topic_ids: _Optional[_Iterable[int]] = ..., topic_records: _Optional[_Iterable[int]] = ..., principals: _Optional[_Iterable[int]] = ..., principal_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("version", "due_us", "topic_ids", "principals")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPALS_FIELD_NUMBER: _ClassVar[int]
    version: int
    due_us: int
    topic_ids: _containers.RepeatedScalarFieldContainer[int]
    principals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., due_us: _Optional[int] = ..., topic_ids: _Optional[_Iterable[int]] = ..., principals: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockHeader(_message.Message):
    __slots__ = ("version", "topic_id", "partition", "floor_us", "id_offsets", "id_rows", "principal")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_US_FIELD_NUMBER: _ClassVar[int]
    ID_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ID_ROWS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic_id: int
    partition: int
    floor_us: int
    id_offsets: bytes
    id_rows: bytes
    principal: int
    def __init__(self, version: _Optional[int] = ..., topic_id: _Optional[int] = ..., partition: _Optional[int] = ..., floor_us: _Optional[int] = ..., id_offsets: _Optional[bytes] = ..., id_rows: _Optional[bytes] = ..., principal: _Optional[int] = ...) -> None: ...
