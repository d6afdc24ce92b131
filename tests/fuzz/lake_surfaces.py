"""What Spark jobs and the cleaning of keyed topics leave in a bucket or a checkpoint, and the
options that they are given: JSON, mostly.
"""

from __future__ import annotations

import json
import random
from dataclasses import astuple, replace
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq_ledger import keys, sinks
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.version import KeyedFile, KeyedVersion, decode_version, encode_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import encode_segment, first_batch_position
from ledgermq_spark.sink.epochs.staging import batches_of
from ledgermq_spark.sink.options import parse_options as parse_sink_options
from ledgermq_spark.source.options import parse_options as parse_source_options
from ledgermq_spark.source.streaming import positions
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate

PLACE = PartitionId(7, 3)
STAGED = keys.sink_staged_rows("query", 5, b"p" * 16)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    2**63,
    10**30,
    float("inf"),
    "",
    "x",
    "7",
    "\ud800",
    [],
    {},
    [[]],
    {"0": 0},
    "../../x",
    "٣",
)


# Values inside of JSON.


def spoil_value(rng: random.Random, value: Any) -> Any:
    """One value at any depth is another one, gone, or there twice."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(sorted(value))
        changed = {**value, name: spoil_value(rng, value[name])}
        if rng.random() < 0.1:
            del changed[name]
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], spoil_value(rng, value[at]), *value[at + rng.choice((0, 1, 1, 1)) :]]
    return rng.choice(ODD)


def spoil_json(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.3:
        return mutate(rng, data, data)
    return json.dumps(spoil_value(rng, json.loads(data))).encode()


# Versions of keyed partitions.


def version() -> bytes:
    files = tuple(
        KeyedFile(f"parquet/topic=t/partition=3/{first}.parquet", first, first + 9, 5, 1, 1000, 10, 20)
        for first in (0, 10, 40)
    )
    return encode_version(KeyedVersion(PLACE, "t", "cluster", 4, b"a" * 16, 60, files, ((20, 1000), (40, 2000)), 10))


def spoil_version(rng: random.Random, data: bytes) -> bytes:
    """Half of them under a checksum that fits."""
    changed = spoil_value(rng, json.loads(data))
    if rng.random() < 0.5 or not isinstance(changed, dict):
        return spoil_json(rng, data)
    blank = json.dumps({**changed, "checksum": "00000000"}, sort_keys=True).encode() + b"\n"
    return blank.replace(b'"checksum": "00000000"', b'"checksum": "%08x"' % crc32c(blank), 1)


def check_version(data: bytes) -> None:
    found = decode_version(data, keys.keyed_version(PLACE, 4), PLACE)
    numbers = [
        found.number,
        found.end,
        found.tombstones_to,
        found.expired_ms,
        *(number for pair in found.earlier for number in pair),
    ]
    numbers += [number for file in found.files for number in astuple(file)[1:]]
    texts = [found.topic, found.cluster, *(file.key for file in found.files)]
    if not all(type(number) is int for number in numbers) or not all(type(text) is str for text in texts):
        raise Untyped(f"a version holds {found}")
    if decode_version(encode_version(found), found.key, PLACE) != found:
        raise Untyped("a version that was read is written as another")


# The sink: decisions and staged rows.


def sink_decision() -> bytes:
    opened = {TopicPartition("t", 0): 41, TopicPartition("t", 3): 17, TopicPartition("u", 1): 5}
    return sinks.encode_decision(sinks.Decision(b"p" * 16, 1000, 12, (STAGED,), {"t": 7, "u": 9}, opened))


def transaction_decision() -> bytes:
    return sinks.encode_decision(sinks.Decision(b"p" * 16, 1000, 12, (), {}, {}, "spark-0a"))


def check_decision(data: bytes) -> None:
    found = sinks.decode_decision(data, "sinks/decision")
    if sinks.decode_decision(sinks.encode_decision(found), "sinks/decision") != found:
        raise Untyped("a decision that was read is written as another")


def staged_rows() -> bytes:
    data = encode_batch(pa.RecordBatch.from_pylist([{"value": b"a"}], SCHEMA))
    entry = fmt.BatchEntry(
        topic_id=7, record_count=1, position=first_batch_position(), length=len(data), crc=crc32c(data)
    )
    return b"".join(bytes(part) for part in encode_segment(fmt.SegmentIndex(put_id=b"p" * 16, batches=[entry]), [data]))


def check_staged(data: bytes) -> None:
    batches_of(data, STAGED)


# What a streaming query's checkpoint says, and options.

POSITION = positions.Position(
    "c" * 32, {"t": positions.TopicPosition(17, {0: 120, 1: 98})}, begun={"t": positions.TopicPosition(17, {0: 1})}
)
SOURCE_OPTIONS = {
    "root": "s3://bucket/prefix",
    "topicsPattern": "a.*|b+",
    "startingOffsets": '{"ab": {"0": 5, "1": -2}}',
    "endingTimestamp": "2026-01-02T03:04:05Z",
    "maxOffsetsPerTrigger": "1000",
    "minPartitions": "4",
    "failOnDataLoss": "false",
    "tag": "a || b",
}
OF_ONE_TOPIC = {
    "root": "file:///data",
    "topic": "t",
    "partitions": "0, 1,4",
    "startingTimestamp": "1764547200000",
    "endingOffsets": "latest",
}
SINK_OPTIONS = {
    "servers": "a:1,b:2",
    "topic": "t",
    "delivery": "exactlyOnce",
    "writeId": "nightly",
    "writeEpoch": "7",
    "batchBytesMax": "1000",
}


def check_position(data: bytes) -> None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return  # Spark reads the text, and says so itself
    position = positions.decode(found)
    if positions.decode(json.loads(json.dumps(positions.encode(position)))) != position:
        raise Untyped("a position that was read is written as another")


def given_options(data: bytes) -> dict[str, str]:
    """As Spark hands them over: text by text."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidConfig("no options") from None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {"root": str(found)}


def check_source_options(data: bytes) -> None:
    parse_source_options(given_options(data)).chosen(["t", "abc"])


def check_sink_options(data: bytes) -> None:
    parse_sink_options(given_options(data), streaming=False)


def spoil_options(rng: random.Random, data: bytes) -> bytes:
    found = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice([*found, "topic", "topics", "startingTimestamp", "includeHeaders", "groupIdForCommit", "rot"])
        odd = (
            "",
            " ",
            "-1",
            "9" * 400,
            "1e9",
            "latest",
            "{",
            "[[]]",
            '{"t": {"0": []}}',
            "(" * 3000,
            "x{4294967296}",
            "a{1,2}{3}",
            "\x00",
        )
        text = mutate(rng, str(found.get(name, "7")).encode(), b"earliest").decode(errors="surrogateescape")
        found[name] = (
            rng.choice((rng.choice(odd), text)).encode(errors="replace").decode()
        )  # Java hands no half characters over
    return json.dumps(found).encode()


def surfaces() -> list[Surface]:
    return [
        Surface(
            "keyed-version",
            [
                version(),
                encode_version(replace(decode_version(version(), keys.keyed_version(PLACE, 4), PLACE), files=())),
            ],
            check_version,
            spoil_version,
        ),
        Surface("sink-decision", [sink_decision(), transaction_decision()], check_decision, spoil_json),
        Surface("staged-rows", [staged_rows()], check_staged),
        Surface("stream-position", [json.dumps(positions.encode(POSITION)).encode()], check_position, spoil_json),
        Surface(
            "source-options",
            [json.dumps(given).encode() for given in (SOURCE_OPTIONS, OF_ONE_TOPIC)],
            check_source_options,
            spoil_options,
        ),
        Surface("sink-options", [json.dumps(SINK_OPTIONS).encode()], check_sink_options, spoil_options),
    ]
