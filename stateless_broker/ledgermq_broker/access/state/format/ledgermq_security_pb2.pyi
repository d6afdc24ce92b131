from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Effect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNSPECIFIED: _ClassVar[Effect]
    ALLOW: _ClassVar[Effect]
    DENY: _ClassVar[Effect]
UNSPECIFIED: Effect
ALLOW: Effect
DENY: Effect

class RuleRecord(_message.Message):
    __slots__ = ("version", "effect", "principal", "operations", "name", "prefix", "created_ms", "created_by")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    version: int
    effect: Effect
    principal: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    name: str
    prefix: bool
    created_ms: int
    created_by: str
    def __init__(self, version: _Optional[int] = ..., effect: _Optional[_Union[Effect, str]] = ..., principal: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., prefix: _Optional[bool] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ...) -> None: ...

class TokenRecord(_message.Message):
    __slots__ = ("version", "hash", "user", "groups", "created_ms", "expires_ms", "created_by")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    version: int
    hash: bytes
    user: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    created_ms: int
    expires_ms: int
    created_by: str
    def __init__(self, version: _Optional[int] = ..., hash: _Optional[bytes] = ..., user: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., created_by: _Optional[str] = ...) -> None: ...

class ScramRecord(_message.Message):
    __slots__ = ("version", "salt", "iterations", "stored_key", "server_key", "created_ms", "created_by")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    STORED_KEY_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    version: int
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes
    created_ms: int
    created_by: str
    def __init__(self, version: _Optional[int] = ..., salt: _Optional[bytes] = ..., iterations: _Optional[int] = ..., stored_key: _Optional[bytes] = ..., server_key: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ...) -> None: ...

class QuotaRecord(_message.Message):
    __slots__ = ("version", "bytes_in", "bytes_out", "requests", "connections", "created_ms", "created_by", "open_transactions", "calls", "microdollars_month")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    MICRODOLLARS_MONTH_FIELD_NUMBER: _ClassVar[int]
    version: int
    bytes_in: int
    bytes_out: int
    requests: int
    connections: int
    created_ms: int
    created_by: str
    open_transactions: int
    calls: int
    microdollars_month: int
    def __init__(self, version: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., requests: _Optional[int] = ..., connections: _Optional[int] = ..., created_ms: _Optional[int] = ..., created_by: _Optional[str] = ..., open_transactions: _Optional[int] = ..., calls: _Optional[int] = ..., microdollars_month: _Optional[int] = ...) -> None: ...

class QuotaChanges(_message.Message):
    __slots__ = ("version", "nonces", "absent")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonces: _containers.RepeatedScalarFieldContainer[bytes]
    absent: _containers.RepeatedCompositeFieldContainer[Absent]
    def __init__(self, version: _Optional[int] = ..., nonces: _Optional[_Iterable[bytes]] = ..., absent: _Optional[_Iterable[_Union[Absent, _Mapping]]] = ...) -> None: ...

class Absent(_message.Message):
    __slots__ = ("nonce", "places")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    places: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., places: _Optional[bytes] = ...) -> None: ...
