"""Options are read strictly: an unknown name and an impossible value are refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import InvalidConfig
from ledgermq_spark.source.options import COLUMNS, NAMES, AtTime, SourceOptions, parse_options


def test_an_option_that_is_not_given_has_its_default() -> None:
    assert parse_options({"path": "/root", "topic": "t"}) == SourceOptions("/root", ("t",))


def test_everything_can_be_given_in_any_case() -> None:
    given = {
        "ROOT": "s3://b/p",
        "topics": "a, b,a",
        "startingoffsets": '{"a": {"0": 5, "1": -2}}',
        "endingOffsets": "LATEST",
        "minpartitions": "7",
        "failOnDataLoss": "False",
        "includeHeaders": "false",
        "tag": "x || y",
    }
    without_headers = tuple(name for name in COLUMNS if name != "headers")
    assert parse_options(given) == SourceOptions(
        "s3://b/p",
        ("a", "b"),
        None,
        None,
        {"a": {0: 5, 1: -2}},
        "latest",
        7,
        False,
        without_headers,
        frozenset({"x", "y"}),
    )


@pytest.mark.parametrize("text", ["1764547200000", "2025-12-01T00:00:00Z", "2025-12-01T01:00:00+01:00"])
def test_times_are_milliseconds_or_iso_8601(text: str) -> None:
    found = parse_options({"root": "/r", "topic": "t", "startingTimestamp": text, "endingTimestamp": text})
    assert found.starting_offsets == found.ending_offsets == AtTime(1_764_547_200_000_000)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "give one of topic, topics"),
        ({"topic": "t", "topics": "u"}, "not topic and topics"),
        ({"topic": "t"}, "root is missing"),
        ({"topic": "t", "startOffsets": "1"}, "did you mean 'startingOffsets'"),
        ({"topicsPattern": "("}, "no regular expression"),
        (
            {"topic": "t", "startingTimestamp": "2026-11-21T07:30:00Z", "endingTimestamp": "2026-11-21T07:29:59Z"},
            "endingTimestamp is before startingTimestamp",
        ),
        ({"topicsPattern": "x{4294967296}"}, "no regular expression"),
        ({"topicsPattern": "(" * 3000}, "no regular expression"),
        ({"topics": " , "}, "names no topic"),
        ({"topics": "a,b", "partitions": "1"}, "of one topic only"),
        ({"topic": "t", "partitions": "1,x"}, "numbers with commas"),
        ({"topic": "t", "partitions": "٣"}, "numbers with commas"),
        ({"topic": "t", "startingOffsets": "soon"}, "earliest, latest, or JSON"),
        ({"topic": "t", "startingOffsets": "[" * 100_000}, "earliest, latest, or JSON"),
        ({"topic": "t", "startingOffsets": '{"t": 5}'}, "is needed"),
        (
            {"topic": "t", "startingOffsets": '{"tt": {"0": 5}}'},
            "startingOffsets names topic 'tt', which the query does not read",
        ),
        ({"topics": "t,u", "endingOffsets": '{"t": {"0": 5}, "v": {}}'}, "endingOffsets names topic 'v'"),
        ({"topicsPattern": "t.*", "startingOffsets": '{"tu": {"0": 5}, "u": {"0": 5}}'}, "names topic 'u'"),
        (
            {"topic": "t", "partitions": "1,2", "startingOffsets": '{"t": {"1": 1, "3": 5}}'},
            "names t/3, and partitions leaves",
        ),
        ({"topic": "t", "endingOffsets": '{"t": {"0": true}}'}, "-1 \\(latest\\) is needed"),
        ({"topic": "t", "endingOffsets": '{"t": {"0": -3}}'}, "-1 \\(latest\\) is needed"),
        ({"topic": "t", "endingOffsets": '{"t": {"x": 3}}'}, "no partition 'x'"),
        ({"topic": "t", "startingTimestamp": "2026-11-21T07:30"}, "a time with its zone"),
        ({"topic": "t", "endingTimestamp": "yesterday"}, "a time with its zone"),
        ({"topic": "t", "startingTimestamp": "5", "startingOffsets": "latest"}, "not both"),
        ({"topic": "t", "minPartitions": "0"}, "a number from 1"),
        ({"topic": "t", "failOnDataLoss": "maybe"}, "true or false"),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name(given: dict[str, str], text: str) -> None:
    root = {} if text in ("root is missing",) else {"root": "/r"}
    with pytest.raises(InvalidConfig, match=text):
        parse_options({**root, **given})


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), st.text(max_size=20)))
def test_any_options_are_taken_or_refused(given: dict[str, str]) -> None:
    """A refusal names an option; what is accepted has nothing but options, a place to read and
    something to read.
    """
    try:
        options = parse_options({"root": "/r", "topic": "t", **given})
    except InvalidConfig as error:
        message = error.message
    else:
        message = ""
    if message:
        assert any(name in message for name in (*given, *NAMES)), message
    else:
        assert {name.lower() for name in given} <= {name.lower() for name in NAMES}
        assert options.root or given.get("servers")
        assert options.topics or options.topics_pattern


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("subscribe", "t", "subscribe is an option of the Kafka connector; here it is topic, or topics"),
        ("SUBSCRIBEPATTERN", "t.*", "it is topicsPattern"),
        ("kafka.bootstrap.servers", "a:1", "give root, the URL of the cluster's store, or servers"),
        ("kafka.security.protocol", "SSL", "leave it out"),
        ("startingOffsetsByTimestamp", "{}", "it is startingTimestamp"),
    ],
)
def test_names_of_the_kafka_connector_say_what_ours_is(name: str, value: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        parse_options({"root": "r", "topic": "t", name: value})


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
def test_a_time_in_seconds_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} 1795867200: .* give 1795867200000"):
        parse_options({"root": "r", "topic": "t", name: "1795867200"})
    parse_options({"root": "r", "topic": "t", name: "0"})
    parse_options({"root": "r", "topic": "t", name: "100000000000"})
