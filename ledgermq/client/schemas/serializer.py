"""A serializer whose values name their schema by its id, in Confluent's frame:

    +----+---------------------+----------------------------+-------+
    | 00 | id, 4 bytes, big-e. | Protobuf: message indexes  | value |
    +----+---------------------+----------------------------+-------+

Message indexes are the way to the message in its file, as zigzag varints with their number in front; the first
message of the file is one byte 00. With the framing `header` values are bare, and a header of their record has the id;
with `none` they are bare, and of the subject's newest schema.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from io import BytesIO
from typing import Any, Protocol

from google.protobuf.message import Message

from ledgermq.client.schemas.descriptions import AVRO, PROTOBUF, SchemaDescription
from ledgermq.errors import InvalidConfig, LedgerMQError
from ledgermq.protocol.naming.schema_ids import CONFLUENT, HEAD_BYTES, HEADER, HEADERS, ID_BYTES, MAGIC, NONE
from ledgermq.runtime.process.missing_modules import what_to_do

ID_DIGITS = 10
LOOK_UP_S_MAX = 20.0
EXTRA = 'pip install "ledgermq[schemas]"'


class Codec(Protocol):
    """Values of one kind. `known`: adds a schema by which values may be written."""

    def known(self, id_: int, text: str) -> None: ...

    def to_bytes(self, value: Any) -> bytes: ...

    def from_bytes(self, id_: int, data: memoryview) -> Any: ...


class SchemaSerializer:
    """A serializer and deserializer of one subject, made by `client.schemas.serializer`. `id`: of the schema that it
    writes by.

    Values of other ids are looked up when the first one comes. In a thread (`ledgermq.sync`, handlers in threads)
    the reading of the value waits for it. On the client's event loop nothing may wait: the value is a bad one, the
    look-up begins, and the value can be read again a moment later; `load` does the same before.
    """

    def __init__(
        self,
        codec: Codec,
        own: SchemaDescription,
        framing: str,
        by_id: Callable[[int], Awaitable[SchemaDescription]],
    ) -> None:
        self.id = own.id
        self._codec, self._kind, self._framing, self._by_id = codec, own.kind, framing, by_id
        self._known: set[int] = set()
        self._loop = asyncio.get_running_loop()
        self._looking_up: dict[int, asyncio.Task[None]] = {}
        self._head = MAGIC + own.id.to_bytes(ID_BYTES, "big") if framing == CONFLUENT else b""
        self.value_headers = [(HEADER, str(own.id).encode())] if framing == HEADERS else []
        """Headers that each record of such a value gets."""
        self._add(own)

    def to_bytes(self, value: Any) -> bytes:
        return self._head + self._codec.to_bytes(value)

    def from_record(self, data: bytes, headers: Sequence[tuple[str, bytes | None]]) -> Any:
        """Return the value of a record that has these headers."""
        if self._framing != HEADERS:
            return self.from_bytes(data)
        said = [value for name, value in headers if name == HEADER]
        if not said or said[-1] is None or not said[-1].isdigit() or len(said[-1]) > ID_DIGITS:
            raise ValueError(f"no header {HEADER} says the id of its schema")
        return self._of_schema(int(said[-1]), memoryview(data))

    def from_bytes(self, data: bytes) -> Any:
        if self._framing == HEADERS:
            raise ValueError(f"the id of its schema is in the header {HEADER} of its record")
        if self._framing == NONE:
            return self._codec.from_bytes(self.id, memoryview(data))
        if data[:1] != MAGIC or len(data) < HEAD_BYTES:
            raise ValueError("it does not begin with a zero byte and the id of a schema")
        return self._of_schema(int.from_bytes(data[1:HEAD_BYTES], "big"), memoryview(data)[HEAD_BYTES:])

    def _of_schema(self, id_: int, data: memoryview) -> Any:
        if id_ not in self._known:
            self._look_up(id_)
        return self._codec.from_bytes(id_, data)

    async def load(self, *ids: int) -> None:
        """Look schemas up by their ids before values of them come. Raises UnknownSchema, Unavailable, and ValueError
        for a schema of another kind.
        """
        for id_ in ids:
            if id_ not in self._known:
                self._add(await self._by_id(id_))

    def _add(self, found: SchemaDescription) -> None:
        if found.kind != self._kind:
            raise ValueError(f"its schema {found.id} is of kind {found.kind}, not {self._kind}")
        self._codec.known(found.id, found.text)
        self._known.add(found.id)

    def _look_up(self, id_: int) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None:
            asyncio.run_coroutine_threadsafe(self.load(id_), self._loop).result(LOOK_UP_S_MAX)
            return
        if loop is self._loop and id_ not in self._looking_up:
            task = loop.create_task(self._later(id_), name="look up a schema")
            self._looking_up[id_] = task
        raise ValueError(f"its schema {id_} is not known yet and is being looked up: read the value again")

    async def _later(self, id_: int) -> None:
        try:
            await self.load(id_)
        except (LedgerMQError, ValueError):
            pass  # the next reading of a value tries again
        finally:
            del self._looking_up[id_]


def codec_of(kind: str, schema: Any, text: str, framing: str) -> Codec:
    """Return what converts values. `schema`: as the program gave it. Raises InvalidConfig."""
    if kind == PROTOBUF:
        if not (isinstance(schema, type) and issubclass(schema, Message)):
            raise InvalidConfig("a serializer of Protobuf needs a class that protoc has generated as its schema")
        return _Protobuf(schema, framing)
    return _Avro(text) if kind == AVRO else _Json()


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidConfig(f"this serializer needs the package {name}: {what_to_do(error, EXTRA)}") from error


class _Avro:
    """Values are converted to the own schema, whichever they were written by."""

    def __init__(self, text: str) -> None:
        self._fastavro, self._schemas = _library("fastavro"), import_module("fastavro.schema")
        self._own = self._parsed(text)
        self._writers: dict[int, Any] = {}

    def _parsed(self, text: str) -> Any:
        is_json = text.lstrip()[:1] in ("{", "[", '"')
        return self._schemas.parse_schema(json.loads(text) if is_json else text.strip())

    def known(self, id_: int, text: str) -> None:
        self._writers[id_] = self._parsed(text)

    def to_bytes(self, value: Any) -> bytes:
        written = BytesIO()
        self._fastavro.schemaless_writer(written, self._own, value, strict=True)
        return written.getvalue()

    def from_bytes(self, id_: int, data: memoryview) -> Any:
        body = BytesIO(data)
        value = self._fastavro.schemaless_reader(body, self._writers[id_], self._own)
        if body.read(1):
            raise ValueError("bytes follow the value")
        return value


class _Json:
    """Values are validated in both directions, by the schema that they name. Patterns are matched in linear time."""

    def __init__(self) -> None:
        self._library = _library("jsonschema_rs")
        self._validators: dict[int, Any] = {}
        self._own = 0

    def known(self, id_: int, text: str) -> None:
        self._validators[id_] = self._library.validator_for(
            json.loads(text), retriever=_refuse, pattern_options=self._library.RegexOptions(size_limit=2**20)
        )
        self._own = self._own or id_

    def to_bytes(self, value: Any) -> bytes:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        self._validators[self._own].validate(value)
        return data

    def from_bytes(self, id_: int, data: memoryview) -> Any:
        value = json.loads(bytes(data))
        self._validators[id_].validate(value)
        return value


def _refuse(uri: str) -> None:
    raise ValueError(f"the schema refers to {uri[:100]}, outside of itself: nothing is fetched")


class _Protobuf:
    """Values are messages of one class; fields that it does not have are kept in them unread."""

    def __init__(self, kind: type[Message], framing: str) -> None:
        self._kind = kind
        path = _path(kind.DESCRIPTOR)
        if framing != CONFLUENT and list(path) != [0]:
            raise InvalidConfig(f"with framing={framing} values are of the first message of their file")
        self._indexes = _encoded(path) if framing == CONFLUENT else b""

    def known(self, id_: int, text: str) -> None:
        base64.b64decode(text, validate=True)

    def to_bytes(self, value: Any) -> bytes:
        if not isinstance(value, self._kind):
            raise TypeError(f"expected a {self._kind.__name__}, not a {type(value).__name__}")
        return self._indexes + value.SerializeToString()

    def from_bytes(self, id_: int, data: memoryview) -> Any:
        size = len(self._indexes)
        if bytes(data[:size]) != self._indexes:
            raise ValueError(f"it is another message of its file than {self._kind.DESCRIPTOR.full_name}")
        return self._kind.FromString(bytes(data[size:]))


def _path(message: Any) -> Sequence[int]:
    """Return the way to a message in its file: at each depth its place among its like."""
    found: list[int] = []
    while message.containing_type is not None:
        found.append([each.full_name for each in message.containing_type.nested_types].index(message.full_name))
        message = message.containing_type
    found.append([each.full_name for each in message.file.message_types_by_name.values()].index(message.full_name))
    return found[::-1]


def _encoded(indexes: Sequence[int]) -> bytes:
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def _zigzag(number: int) -> bytes:
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
