"""Turn a program's values into bytes, and back: the values of `serializer=` and `deserializer=`.

Each library is imported when its serializer is made, so that a program needs only those that it uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

from google.protobuf.message import Message as ProtobufMessage

from ledgermq.errors import InvalidConfig, InvalidRecord
from ledgermq.runtime.process.missing_modules import what_to_do

if TYPE_CHECKING:  # `Serializer` alone means Serializer[Any] (PEP 696)
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
    B = TypeVar("B", default=bytes)
    S = TypeVar("S", default=Any)
    V_co = TypeVar("V_co", default=Any, covariant=True)
    S_contra = TypeVar("S_contra", default=Any, contravariant=True)
    K = TypeVar("K")
    P = TypeVar("P", bound=ProtobufMessage)
else:
    from typing import TypeVar

    V, B, S = TypeVar("V"), TypeVar("B"), TypeVar("S")
    V_co, S_contra = TypeVar("V_co", covariant=True), TypeVar("S_contra", contravariant=True)
    K, P = TypeVar("K"), TypeVar("P")

SINGLE_OBJECT = b"\xc3\x01"
"""What Avro's single-object encoding begins with (Avro specification 1.12); the fingerprint of the schema follows."""
FINGERPRINT_BYTES = 8


class ToBytes(Protocol[S_contra]):
    """A serializer of producers: any object with this method."""

    def to_bytes(self, value: S_contra, /) -> bytes: ...


class FromBytes(Protocol[V_co]):
    """A deserializer of consumers: any object with this method."""

    def from_bytes(self, data: bytes, /) -> V_co: ...


@dataclass(frozen=True, slots=True)
class Serializer(Generic[V]):
    """Two functions: `to_bytes(value)`, for `serializer=` of producers, and `from_bytes(data)`, for
    `deserializer=` of consumers. Each raises an error of any type for what it cannot convert.

    `ledgermq.Serializer(to_bytes, from_bytes)` makes one of the program's own functions. To type
    checkers, `Serializer.pydantic(Order)` is a `Serializer[Order]`.
    """

    to_bytes: Callable[[V], bytes]
    from_bytes: Callable[[bytes], V]

    @staticmethod
    def json() -> Serializer[Any]:
        """Convert dictionaries, lists, text, numbers, True, False and None to JSON in UTF-8. NaN and infinity
        are refused, because JSON has neither.
        """

        def to_bytes(value: Any) -> bytes:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

        return Serializer(to_bytes, json.loads)

    @staticmethod
    def msgpack() -> Serializer[Any]:
        """Convert the values of `json`, bytes, and times with a time zone to MessagePack. Needs the extra
        "msgpack".
        """
        msgpack = _library("msgpack", "msgpack")

        def to_bytes(value: Any) -> bytes:
            return bytes(msgpack.packb(value, datetime=True))

        def from_bytes(data: bytes) -> Any:
            return msgpack.unpackb(data, timestamp=3, strict_map_key=False)

        return Serializer(to_bytes, from_bytes)

    @overload
    @staticmethod
    def pydantic(kind: type[K]) -> Serializer[K]: ...
    @overload
    @staticmethod
    def pydantic(kind: Any) -> Serializer[Any]: ...
    @staticmethod
    def pydantic(kind: Any) -> Serializer[Any]:
        """Convert instances of a pydantic model, or of any other type that pydantic knows (a dataclass, a union,
        `list[Order]`), to JSON. Values are validated in both directions. Needs the extra "pydantic".
        """
        adapter = _library("pydantic", "pydantic").TypeAdapter(kind)

        def to_bytes(value: Any) -> bytes:
            return bytes(adapter.dump_json(adapter.validate_python(value)))

        return Serializer(to_bytes, adapter.validate_json)

    @staticmethod
    def protobuf(kind: type[P]) -> Serializer[P]:
        """Convert messages of a class that protoc has generated. Raises InvalidConfig for another class."""
        given: object = kind
        if not (isinstance(given, type) and issubclass(given, ProtobufMessage)):
            raise InvalidConfig(f"kind must be a class that protoc has generated, not {kind!r}")

        def to_bytes(value: Any) -> bytes:
            if not isinstance(value, kind):
                raise TypeError(f"expected a {kind.__name__}, not a {type(value).__name__}")
            return value.SerializeToString()

        return Serializer(to_bytes, kind.FromString)

    @staticmethod
    def avro(schema: Any, *older: Any) -> Serializer[Any]:
        """Convert dictionaries by an Avro schema, in Avro's single-object encoding, which names the schema by its
        fingerprint. Needs the extra "avro".

        `schema`: as a dictionary or JSON text; values are written with it. `older`: schemas of values that are
        still read; they are converted to `schema` by Avro's rules. A value with another schema is a bad
        value. Raises InvalidConfig.
        """
        _library("fastavro", "avro")
        fastavro, schemas = import_module("fastavro"), import_module("fastavro.schema")
        try:
            parsed = [_parsed(schemas, each) for each in (schema, *older)]
        except Exception as error:  # fastavro raises errors of many types
            raise InvalidConfig(f"the Avro schema cannot be read: {error}") from error
        by_fingerprint = {_fingerprint(schemas, each): each for each in parsed}
        newest, head = parsed[0], SINGLE_OBJECT + _fingerprint(schemas, parsed[0])

        def to_bytes(value: Any) -> bytes:
            written = BytesIO()
            fastavro.schemaless_writer(written, newest, value, strict=True)
            return head + written.getvalue()

        def from_bytes(data: bytes) -> Any:
            start = len(SINGLE_OBJECT)
            if data[:start] != SINGLE_OBJECT:
                raise ValueError("it is not in Avro's single-object encoding")
            fingerprint = data[start : start + FINGERPRINT_BYTES]
            if fingerprint not in by_fingerprint:
                raise ValueError(f"its schema has the fingerprint {fingerprint.hex()}: give that schema, too")
            body = BytesIO(data[start + FINGERPRINT_BYTES :])
            value = fastavro.schemaless_reader(body, by_fingerprint[fingerprint], newest)
            if body.read(1):
                raise ValueError("bytes follow the value")
            return value

        return Serializer(to_bytes, from_bytes)


def serialized(serializer: ToBytes, value: Any) -> bytes:
    """Return the bytes of a value. Raises InvalidRecord."""
    try:
        data = serializer.to_bytes(value)
    except Exception as error:
        raise InvalidRecord(f"the serializer refuses the value: {type(error).__name__}: {error}") from error
    if not isinstance(data, bytes):
        raise InvalidRecord(f"to_bytes of the serializer must return bytes, not a {type(data).__name__}")
    return data


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        advice = what_to_do(error, f'pip install "ledgermq[{extra}]"')
        raise InvalidConfig(f"this serializer needs the package {name}: {advice}") from error


def _parsed(schemas: Any, schema: Any) -> Any:
    return schemas.parse_schema(
        json.loads(schema) if isinstance(schema, str) and schema[:1] in ("{", "[", '"') else schema
    )


def _fingerprint(schemas: Any, parsed: Any) -> bytes:
    """Return the fingerprint, little-endian as the specification wants it. fastavro returns those bytes as
    hexadecimal text.
    """
    return bytes.fromhex(schemas.fingerprint(schemas.to_parsing_canonical_form(parsed), "CRC-64-AVRO"))
