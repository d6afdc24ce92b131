from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SchemaRecord(_message.Message):
    __slots__ = ("version", "id", "kind", "text", "digest", "fields", "created_ms", "created_by")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    version: int
    id: int
    kind: str
    text: str
    digest: bytes
    fields: _containers.RepeatedCompositeFieldContainer[SchemaField]
    created_ms: int
    created_by: str
    def __init__(self, version: _Optional[int] = ..., id: _Optional[int] = ..., kind: _Optional[str] = ..., text: _Optional[str] = ..., digest: _Optional[bytes] = ..., fields: _Optional[_Iterable[_Union[SchemaField, _Mapping]]] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ...) -> None: ...

class SchemaField(_message.Message):
    __slots__ = ("id", "path", "type", "identity", "removed")
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    id: int
    path: str
    type: str
    identity: str
    removed: bool
    def __init__(self, id: _Optional[int] = ..., path: _Optional[str] = ..., type: _Optional[str] = ..., identity: _Optional[str] = ..., removed: _Optional[bool] = ...) -> None: ...

class SubjectRecord(_message.Message):
    __slots__ = ("version", "compatibility", "newest", "deleted", "for_good")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    FOR_GOOD_FIELD_NUMBER: _ClassVar[int]
    version: int
    compatibility: str
    newest: int
    deleted: _containers.RepeatedScalarFieldContainer[int]
    for_good: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., compatibility: _Optional[str] = ..., newest: _Optional[int] = ..., deleted: _Optional[_Iterable[int]] = ..., for_good: _Optional[_Iterable[int]] = ...) -> None: ...

class SchemasRecord(_message.Message):
    __slots__ = ("version", "ids", "field_ids", "nonces")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    FIELD_IDS_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    version: int
    ids: int
    field_ids: int
    nonces: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, version: _Optional[int] = ..., ids: _Optional[int] = ..., field_ids: _Optional[int] = ..., nonces: _Optional[_Iterable[bytes]] = ...) -> None: ...
