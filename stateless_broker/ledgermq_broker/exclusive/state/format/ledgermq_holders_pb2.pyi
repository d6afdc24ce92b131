from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Holder(_message.Message):
    __slots__ = ("version", "producer_id", "name", "number", "principal")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    version: int
    producer_id: bytes
    name: str
    number: int
    principal: int
    def __init__(self, version: _Optional[int] = ..., producer_id: _Optional[bytes] = ..., name: _Optional[str] = ..., number: _Optional[int] = ..., principal: _Optional[int] = ...) -> None: ...
