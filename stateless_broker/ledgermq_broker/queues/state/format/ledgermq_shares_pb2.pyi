from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Start(_message.Message):
    __slots__ = ("version", "offset", "resets", "principal", "begun")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    version: int
    offset: int
    resets: _containers.RepeatedScalarFieldContainer[bytes]
    principal: int
    begun: bytes
    def __init__(self, version: _Optional[int] = ..., offset: _Optional[int] = ..., resets: _Optional[_Iterable[bytes]] = ..., principal: _Optional[int] = ..., begun: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("version", "messages")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    version: int
    messages: bytes
    def __init__(self, version: _Optional[int] = ..., messages: _Optional[bytes] = ...) -> None: ...
