"""Options and columns are read strictly, in the driver: an unknown name and an impossible value are
refused by name.
"""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ledgermq.errors import InvalidConfig, InvalidRecord
from ledgermq_spark.sink.options import SinkOptions, parse_options
from ledgermq_spark.sink.rows.columns import check_columns
from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.options import parse_options as parse_source_options

S = {"servers": "localhost:9650"}


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert parse_options(S, streaming=True) == SinkOptions("localhost:9650")
    assert parse_options(S | {"checkpointLocation": "x", "queryName": "q"}, streaming=True) == SinkOptions(
        "localhost:9650"
    )


def test_everything_can_be_given_in_any_case() -> None:
    given = {
        "SERVERS": "a:1,b:2",
        "topic": "t",
        "delivery": "ExactlyOnce",
        "Transactional": "TRUE",
        "transactionTimeoutS": "90",
        "root": "s3://b/p",
        "writeid": "day=2026-11-21",
        "WriteEpoch": "7",
        "Compression": "ZSTD",
        "batchbytesmax": "1000",
        "bufferBytesMax": "2000",
        "requestTimeoutS": "1.5",
        "deliveryTimeoutS": "60",
        "tokenFile": "/t",
    }
    found = parse_options(given, streaming=False)
    assert found == SinkOptions(
        "a:1,b:2",
        "t",
        "exactlyOnce",
        True,
        90.0,
        "s3://b/p",
        "day=2026-11-21",
        7,
        "zstd",
        1000,
        2000,
        1.5,
        60.0,
        token_file="/t",
    )
    assert found.client_settings() == {"timeout_s": 60.0, "tls": None, "token": "", "token_file": "/t"}


def test_a_token_is_taken_checked_and_shown_nowhere() -> None:
    secret = "lmq_0123456789ab_" + "s" * 43
    found = parse_options(S | {"TOKEN": f" {secret}\n"}, streaming=True)
    assert found.client_settings()["token"] == secret
    read = parse_source_options(S | {"topic": "t", "token": secret})
    assert read.connection.settings() == {"tls": None, "token": secret, "token_file": ""}
    assert secret not in repr((found, found.connection(), read))
    for parse in (
        lambda given: parse_options(S | given, streaming=False),
        lambda given: parse_source_options(S | {"topic": "t"} | given),
    ):
        with pytest.raises(InvalidConfig, match="token: a token is one word") as refused:
            parse({"token": f"{secret} {secret}"})
        assert secret not in str(refused.value)
        with pytest.raises(InvalidConfig, match="give token or tokenFile, not both") as refused:
            parse({"token": secret, "tokenFile": "/t"})
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "servers is missing"),
        ({"servers": "file:///root"}, "a URL is for root"),
        ({"servers": "host"}, "is not a broker address"),
        (S | {"topics": "a"}, "unknown option 'topics'; did you mean 'topic'"),
        (S | {"acks": "received"}, "unknown option 'acks'; known: servers, topic"),
        (S | {"delivery": "atMostOnce"}, "delivery is one of exactlyOnce, atLeastOnce, not 'atMostOnce'"),
        (S | {"compression": "gzip"}, "compression is one of lz4, none, zstd"),
        (S | {"batchBytesMax": "0"}, "batchBytesMax is a number of bytes, as 1048576, above 0"),
        (S | {"batchBytesMax": "1e9"}, "batchBytesMax is a number of bytes, as 1048576, above 0"),
        (S | {"batchBytesMax": "99999999"}, "batch_bytes_max must be a number from 1 to"),
        (S | {"writeId": "a/../b"}, "writeId has 1 to 100 letters"),
        (S | {"writeEpoch": "1"}, "writeEpoch is a number from 0 on that goes with writeId"),
        (S | {"writeId": "x", "writeEpoch": "-1"}, "writeEpoch is a number from 0 on"),
        (S | {"writeId": "x", "delivery": "atLeastOnce"}, "writeId goes with delivery=exactlyOnce"),
        (S | {"transactional": "yes"}, "transactional is true or false, not 'yes'"),
        (
            S | {"transactional": "true", "delivery": "atLeastOnce"},
            "transactional=true goes with delivery=exactlyOnce",
        ),
    ],
)
def test_an_impossible_option_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        parse_options(given, streaming=False)


def test_a_streaming_query_needs_no_name() -> None:
    with pytest.raises(InvalidConfig, match="known by its checkpoint"):
        parse_options(S | {"writeId": "x"}, streaming=True)


BYTES, TEXT = BinaryType(), StringType()
HEADERS = ArrayType(StructType().add("key", TEXT).add("value", BYTES))


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    "schema",
    [
        columns(value=BYTES),
        columns(key=TEXT, value=TEXT, topic=TEXT),
        columns(
            value=TEXT,
            partition=LongType(),
            headers=ArrayType(StructType().add("key", TEXT).add("value", TEXT)),
            timestamp=TimestampType(),
            tag=TEXT,
        ),
        columns(
            key=BYTES,
            value=BYTES,
            topic=TEXT,
            partition=IntegerType(),
            offset=LongType(),
            timestampType=IntegerType(),
            headers=HEADERS,
        ),
    ],
)
def test_columns_that_fit(schema: StructType) -> None:
    check_columns(schema, "t")


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        (columns(key=BYTES), "t", "there is no column value; there are key"),
        (columns(value=IntegerType()), "t", "column value is int; binary or string is needed"),
        (columns(value=StructType().add("a", TEXT)), "t", "column value is struct<a:string>; binary or string"),
        (columns(value=TEXT, key=DoubleType()), "t", "column key is double"),
        (columns(value=TEXT), "", "no topic: give the option topic, or a column topic"),
        (columns(value=TEXT, topic=IntegerType()), "", "column topic is int; string is needed"),
        (columns(value=TEXT, partition=TEXT), "t", "column partition is string; int is needed"),
        (columns(value=TEXT, timestamp=TEXT), "t", "column timestamp is string; timestamp is needed"),
        (
            columns(value=TEXT, timestamp=TimestampNTZType()),
            "t",
            "column timestamp is timestamp_ntz; timestamp is needed",
        ),
        (
            columns(value=TEXT, headers=MapType(TEXT, BYTES)),
            "t",
            "column headers is map<string,binary>; array<struct<key:string,value:",
        ),
        (
            columns(value=TEXT, headers=ArrayType(StructType().add("k", TEXT).add("v", BYTES))),
            "t",
            "column headers is array<struct<k:",
        ),
        (columns(value=TEXT, Tag=TEXT), "t", r"column 'Tag' \(string\): did you mean 'tag'"),
        (
            columns(value=TEXT, amount=DecimalType(10, 2)),
            "t",
            r"column 'amount' \(decimal\(10,2\)\): records have no such column",
        ),
        (columns(value=TEXT).add("value", BYTES), "t", "there are two columns 'value'"),
    ],
)
def test_columns_that_do_not_fit(schema: StructType, topic: str, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        check_columns(schema, topic)


def test_the_data_source_refuses_in_the_driver() -> None:
    source = LedgerMQDataSource({"servers": "localhost:1", "topic": "t"})
    for hook in (source.writer, source.streamWriter):
        with pytest.raises(InvalidRecord, match="no column value"):
            hook(columns(key=TEXT), False)
        with pytest.raises(InvalidConfig, match="only appended to"):
            hook(columns(value=TEXT), True)
