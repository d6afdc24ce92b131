"""Generated messages mean what two other implementations of the Kafka protocol read in them."""

from __future__ import annotations

import dataclasses
import importlib
import io
import random
from typing import Any

import pytest
from kafka.protocol.api_message import ApiMessage
from kio.serial import entity_reader, entity_writer

from ledgermq.errors import CorruptFrame
from ledgermq_broker.kafka.wire.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    API_VERSIONS,
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    METADATA,
    PRODUCE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    Api,
    Message,
    api_of,
    read_whole,
    written,
)
from ledgermq_broker.kafka.wire.primitives import ELEMENTS_MAX, Reader
from tests.unit.kafka.drawn_messages import every_message, message

ROUNDS = 5
EVERY = [pytest.param(api, kind, version, id=f"{kind.__name__}-{version}") for api, kind, version in every_message()]

OF_KIO_ALONE = (
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SHARE_GROUP_DESCRIBE,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
)
OF_KAFKA_PYTHON = [each for each in EVERY if each.values[0] not in OF_KIO_ALONE]
"""It has no KIP-848 and no KIP-932 yet."""


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _of_kio(api: Api, kind: type[Message], version: int) -> type[Any]:
    part = "request" if kind is api.request else "response"
    module = importlib.import_module(f"kio.schema.{_snake(api.name)}.v{version}.{part}")
    found: type[Any] = getattr(module, kind.__name__)
    return found


def _of_kafka_python(kind: type[Message]) -> Any:
    for room in ("metadata", "producer", "consumer", "admin", "sasl"):
        found = getattr(importlib.import_module(f"kafka.protocol.{room}"), kind.__name__, None)
        if found is not None:
            return found
    raise AssertionError(f"kafka-python has no {kind.__name__}")


@pytest.mark.parametrize(("api", "kind", "version"), EVERY)
def test_kio_reads_what_is_written_and_writes_what_is_read(api: Api, kind: type[Message], version: int) -> None:
    rng = random.Random(f"{kind.__name__}/{version}")
    theirs = _of_kio(api, kind, version)
    read, write = entity_reader(theirs), entity_writer(theirs)
    for _ in range(ROUNDS):
        _, data = message(rng, kind, version)
        found, size = read(data, 0)
        assert size == len(data)
        sink = io.BytesIO()
        write(sink, found)
        assert sink.getvalue() == data
        again = read_whole(kind, Reader(data), version)
        assert b"".join(written(again, version)) == data
        _same_values(again, found)


def _same_values(ours: Any, theirs: Any) -> None:
    """Names and values are the same, as far as kio keeps them as they are."""
    for name in [field.name for field in dataclasses.fields(theirs)]:
        other = getattr(theirs, name)
        if isinstance(other, tuple) and other and hasattr(other[0], "__dataclass_fields__"):
            for one, another in zip(getattr(ours, name), other, strict=True):
                _same_values(one, another)
        elif hasattr(other, "__dataclass_fields__"):
            _same_values(getattr(ours, name), other)
        elif type(other) in (int, str, bool) and hasattr(ours, name):
            assert getattr(ours, name) == other


@pytest.mark.parametrize(("api", "kind", "version"), OF_KAFKA_PYTHON)
def test_kafka_python_reads_what_is_written_and_writes_the_same(api: Api, kind: type[Message], version: int) -> None:
    theirs: type[ApiMessage] = _of_kafka_python(kind)
    if version > theirs.max_version:
        pytest.skip(f"kafka-python knows versions up to {theirs.max_version}")
    rng = random.Random(f"{kind.__name__}/{version}/kafka-python")
    for _ in range(ROUNDS):
        _, data = message(rng, kind, version)
        if kind is API_VERSIONS.response:
            data = bytes(2) + data[2:]  # with an error code, kafka-python reads it as version 0
        found = theirs.decode(data, version=version)
        found._header = None  # what is decoded has none, and encoding looks for it
        assert bytes(found.encode(version=version)) == data


def test_a_field_that_a_version_lacks_has_its_default() -> None:
    data = b"".join(written(METADATA.request(), 0))  # type: ignore[call-arg]
    found: Any = read_whole(METADATA.request, Reader(data), 0)
    assert found.allow_auto_topic_creation
    assert found.topics == []


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = b"".join(written(API_VERSIONS.request(client_software_name="x", client_software_version="1"), 3))  # type: ignore[call-arg]
    assert plain.endswith(b"\x00")
    tagged = plain[:-1] + b"\x02" + b"\x07\x03abc" + b"\xff\x01\x00"
    assert read_whole(API_VERSIONS.request, Reader(tagged), 3) == read_whole(API_VERSIONS.request, Reader(plain), 3)


@pytest.mark.parametrize(
    ("data", "version", "why"),
    [
        (b"\x00\x00\x00\x02\x00\x01a", 0, "ends inside"),
        (b"\x7f\xff\xff\xff\x00\x01a", 0, "an array of 2147483647 elements"),
        (b"\x00\x00\x00\x01\xff\xffa", 0, "null where"),
        (b"\x00\x00\x00\x01\x00\x01\xff", 0, "not UTF-8"),
        (b"\x00\x00\x00\x00!", 0, "left over"),
        (b"\xff\xff\xff\xff\xff\x01", 9, "five bytes"),
        (b"\xff\xff\xff\xff\x1f", 9, "2\\*\\*32"),
        (b"\x01\x00\x00\x00\x02\x01\x00\x01\x00", 9, "comes after"),
    ],
)
def test_what_is_wrong_is_a_corrupt_frame(data: bytes, version: int, why: str) -> None:
    with pytest.raises(CorruptFrame, match=why):
        read_whole(METADATA.request, Reader(data), version)


def test_a_frame_has_a_bounded_number_of_elements() -> None:
    """Else 16 MiB of array elements of two bytes would become gigabytes of objects."""
    count = ELEMENTS_MAX + 1
    with pytest.raises(CorruptFrame, match="elements of arrays"):
        METADATA.request.read(Reader(count.to_bytes(4, "big") + bytes(2 * count)), 0)


def test_records_are_views_and_are_not_copied() -> None:
    pieces = [b"a" * 10, b"b" * 20]
    produce: Any = PRODUCE.request
    from ledgermq_broker.kafka.wire.generated import produce_request as g

    made = produce(topic_data=[g.TopicProduceData(name="t", partition_data=[g.PartitionProduceData(records=pieces)])])
    out = written(made, 9)
    assert any(piece is pieces[0] for piece in out)
    found: Any = read_whole(produce, Reader(b"".join(out)), 9)
    assert isinstance(found.topic_data[0].partition_data[0].records, memoryview)


def test_every_api_has_a_key_of_its_own() -> None:
    assert api_of(3) is METADATA
    assert api_of(4) is None
