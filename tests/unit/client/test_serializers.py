"""Serializers: what goes in comes out, and what cannot be converted is refused with its reason."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

import ledgermq
from ledgermq import Serializer
from ledgermq.client.consuming.message import Message, made_as, opened
from ledgermq.client.producing.buffering.preparing import prepared
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import ConsumerSettings, TableSettings, settings_from
from ledgermq.errors import BadValue, InvalidConfig, InvalidRecord
from ledgermq.protocol import ledgermq_pb2 as pb


class Order(BaseModel):
    table: int
    drink: str = "tea"


@dataclass
class Point:
    x: int
    y: int


OLD = {"type": "record", "name": "Order", "fields": [{"name": "table", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "drink", "type": "string", "default": "tea"}]}

GOOD: dict[str, tuple[Serializer, list[Any]]] = {
    "json": (Serializer.json(), [{"a": [1, 2.5, "ü", None, True]}, [], "text", 0]),
    "msgpack": (Serializer.msgpack(), [{"a": b"\xff", 1: [2.5, None]}, datetime(2026, 11, 1, tzinfo=UTC)]),
    "pydantic": (Serializer.pydantic(Order), [Order(table=7), Order(table=1, drink="ü")]),
    "dataclass": (Serializer.pydantic(list[Point]), [[Point(1, 2)], []]),
    "protobuf": (Serializer.protobuf(pb.TopicInfo), [pb.TopicInfo(name="t", topic_id=5), pb.TopicInfo()]),
    "avro": (Serializer.avro(NEW, OLD), [{"table": 7, "drink": "coffee"}]),
}
BAD_VALUES = [
    ("json", float("nan")),
    ("json", {1, 2}),
    ("json", b"bytes"),
    ("json", "\ud800"),
    ("msgpack", object()),
    ("pydantic", {"drink": "tea"}),
    ("dataclass", 5),
    ("protobuf", pb.ProduceBatch()),
    ("avro", {"drink": "tea"}),
    ("avro", {"table": 1, "drink": "tea", "surplus": 1}),
]
BAD_BYTES = [
    ("json", b"{"),
    ("json", b"\xff"),
    ("msgpack", b"\xc1"),
    ("msgpack", b"\x01\x01"),
    ("pydantic", b'{"table": "x"}'),
    ("dataclass", b"{}"),
    ("protobuf", b"\xff"),
    ("avro", b"{}"),
    ("avro", b""),
    ("avro", b"\xc3\x01" + bytes(8) + b"\x02"),
]


@pytest.mark.parametrize("name", GOOD)
def test_what_goes_in_comes_out(name: str) -> None:
    serializer, values = GOOD[name]
    for value in values:
        assert serializer.from_bytes(serializer.to_bytes(value)) == value


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_value_that_cannot_be_written_is_refused(name: str, value: object) -> None:
    settings = settings_from(ProducerSettings, {"serializer": GOOD[name][0]})
    with pytest.raises(InvalidRecord, match="the serializer refuses the value") as found:
        prepared(settings, "t", value, None, None, None, None, None, None, 0)
    assert found.value.__cause__ is not None


@pytest.mark.parametrize(("name", "data"), BAD_BYTES)
def test_bytes_that_cannot_be_read_are_a_typed_error_with_the_message(name: str, data: bytes) -> None:
    plain = Message("t", 1, 7, b"k", data, (), 5, None)
    message = made_as(opened(Message, GOOD[name][0], ()), plain)
    for _ in range(2):
        with pytest.raises(BadValue, match=r"message t/1, offset 7: the deserializer refuses its value") as found:
            _ = message.value
        assert found.value.record == plain
        assert type(found.value.record) is Message
    assert (message.raw, message.key, message.offset) == (data, b"k", 7)


def test_avro_reads_what_older_schemas_wrote() -> None:
    old = Serializer.avro(OLD)
    written = old.to_bytes({"table": 7})
    assert Serializer.avro(NEW, OLD).from_bytes(written) == {"table": 7, "drink": "tea"}
    with pytest.raises(ValueError, match="give that schema, too"):
        Serializer.avro(NEW).from_bytes(written)
    with pytest.raises(ValueError, match="bytes follow the value"):
        old.from_bytes(written + b"\0")


def test_avro_finds_the_fingerprint_of_the_specification() -> None:
    assert Serializer.avro('"int"').to_bytes(1) == bytes.fromhex("c301 8f5c393f1ad57572 02")


@pytest.mark.parametrize("schema", [{"type": "recrod"}, "{", 5, None])
def test_a_schema_that_cannot_be_read_is_refused(schema: object) -> None:
    with pytest.raises(InvalidConfig, match="Avro schema"):
        Serializer.avro(schema)


def test_protobuf_takes_generated_classes_only() -> None:
    for given in (int, "TopicInfo", pb.TopicInfo()):
        with pytest.raises(InvalidConfig, match="protoc"):
            Serializer.protobuf(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("package", "extra", "make"),
    [
        ("msgpack", "msgpack", Serializer.msgpack),
        ("pydantic", "pydantic", lambda: Serializer.pydantic(int)),
        ("fastavro", "avro", lambda: Serializer.avro("int")),
    ],
)
def test_a_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, extra: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidConfig, match=rf'pip install "ledgermq\[{extra}\]"'):
        make()


def test_any_object_with_the_method_is_one() -> None:
    class Upper:
        def to_bytes(self, value: str) -> bytes:
            return value.upper().encode()

    settings = settings_from(ProducerSettings, {"serializer": Upper()})
    assert prepared(settings, "t", "a", None, None, None, None, None, None, 0)[1][1] == b"A"
    with pytest.raises(InvalidConfig, match="deserializer must be an object with the methods from_bytes"):
        settings_from(ConsumerSettings, {"deserializer": Upper()})


def test_a_serializer_must_return_bytes() -> None:
    settings = settings_from(ProducerSettings, {"serializer": Serializer(str, str)})  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord, match="must return bytes, not a str"):
        prepared(settings, "t", 5, None, None, None, None, None, None, 0)


def test_a_table_refuses_interceptors() -> None:
    with pytest.raises(InvalidConfig, match="leave out interceptors"):
        settings_from(TableSettings, {"interceptors": [lambda message: message]})


# -- interceptors


def test_interceptors_of_consumers_change_what_the_program_sees_and_not_what_is_stored() -> None:
    plain = Message("t", 1, 7, b"k", b"5", (), 5, None)
    kind = opened(
        Message,
        Serializer.json(),
        [lambda each: each._replace(value=each.raw + b"0"), lambda each: each._replace(key=each.raw)],
    )
    message = made_as(kind, plain)
    assert (message.value, message.key) == (50, b"50")
    assert message.stored == plain
    assert made_as(kind, message).value == 50, "they are called once for each delivery"


@pytest.mark.parametrize(
    ("interceptor", "reason"),
    [
        (lambda message: message._replace(offset=8), "must not change topic, partition or offset"),
        (lambda message: None, "must return a message"),
        (tuple, "must return a message"),
        (lambda message: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_an_interceptor_of_consumers_that_fails_makes_a_bad_value(interceptor: Any, reason: str) -> None:
    plain = Message("t", 1, 7, b"k", b"5", (), 5, None)
    message = made_as(opened(Message, None, [interceptor]), plain)
    assert message == plain
    with pytest.raises(BadValue, match=f"an interceptor refuses it: .*{reason}") as found:
        _ = message.value
    assert found.value.record == plain


@pytest.mark.parametrize("interceptor", [lambda record: None, lambda record: 1 / 0])
def test_an_interceptor_of_producers_that_fails_refuses_its_record(interceptor: Any) -> None:
    settings = settings_from(ProducerSettings, {"interceptors": [interceptor]})
    with pytest.raises(InvalidRecord, match="an interceptor"):
        prepared(settings, "t", b"v", None, None, None, None, None, None, 0)


def test_interceptors_of_producers_are_called_in_order_before_the_serializer() -> None:
    def first(record: ledgermq.Outgoing) -> ledgermq.Outgoing:
        return record._replace(topic="u", value=[record.value], partition=3)

    def second(record: ledgermq.Outgoing) -> ledgermq.Outgoing:
        return record._replace(headers={"topic": record.topic}, tag="T")

    settings = settings_from(ProducerSettings, {"interceptors": [first, second], "serializer": Serializer.json()})
    topic, row, partition = prepared(settings, "t", "v", "k", None, None, None, None, None, 9)
    assert (topic, partition) == ("u", 3)
    assert row == (b"k", b'["v"]', [("topic", b"u")], 9, "T")


def test_the_due_time_of_a_delayed_record_stays() -> None:
    settings = settings_from(ProducerSettings, {"interceptors": [lambda record: record._replace(timestamp=1)]})
    assert prepared(settings, "t", b"v", None, None, None, None, None, None, 0)[1][3] == 1
    with pytest.raises(InvalidRecord, match="due time"):
        prepared(settings, "t", b"v", None, None, None, 5, None, None, 0, delayed=True)
