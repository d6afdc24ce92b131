"""Declare and parse the options of `spark.read.format("ledgermq")` and of `spark.readStream`. No
Spark, no store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import pyarrow as pa

from ledgermq.client.consuming.message import TABLE_SCHEMA
from ledgermq.client.messages.record import microseconds_of
from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq.filters.filter import parse_filter
from ledgermq.protocol.limits import OFFSET_MAX
from ledgermq_ledger.cuts.record import check_name
from ledgermq_spark.options import (
    Connection,
    ConnectionOptions,
    above_zero,
    between,
    check_servers,
    known_options,
    names_of,
    option,
    parse_known,
    switch,
)

COLUMNS = tuple(TABLE_SCHEMA.names)
EARLIEST, LATEST = -2, -1
MILLISECONDS_MIN = 10**11
"""Smaller numbers are before March 1973 as milliseconds, and until the year 5138 as seconds."""
MIN_PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of this time or a later one; the end if there is none."""

    timestamp_us: int


Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]] | AtTime


def _cut(name: str, text: str) -> str:
    try:
        check_name(text)
    except InvalidRequest as error:
        raise InvalidConfig(f"{name}: {error.message}") from None
    return text


def _filter(name: str, text: str) -> str:
    found = parse_filter(text)
    if found is not None and found.function:
        raise InvalidConfig(
            f"{name} cannot have FUNCTION({found.function!r}): functions run in brokers, and Spark reads the store"
        )
    return text


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if text and not names:
        raise InvalidConfig(f"{name} names no topic")
    return names


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidConfig(f"{name} {text!r} is no regular expression: {error}") from error
    return text


def _partitions(name: str, text: str) -> frozenset[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", number) for number in numbers):
        raise InvalidConfig(f"{name} are numbers with commas between them, not {text!r}")
    return frozenset(map(int, numbers))


def _time(name: str, text: str) -> AtTime:
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", text):
        if 0 < int(text) < MILLISECONDS_MIN:
            raise InvalidConfig(f"{name} {text}: milliseconds since 1970 are needed, these are seconds; give {text}000")
        return AtTime(int(text) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidConfig(
            f"{name} {text!r}: a time with its zone is needed, as 2026-11-21T07:30:00Z, or milliseconds since 1970"
        )
    return AtTime(microseconds_of(moment))


def _offsets(name: str, text: str) -> Offsets:
    text = text.strip()
    if text.lower() in ("earliest", "latest"):
        return "earliest" if text.lower() == "earliest" else "latest"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(
            f'{name} {text!r}: give earliest, latest, or JSON as {{"topic": {{"0": 23}}}}: {error}'
        ) from error
    if not isinstance(found, dict) or not all(isinstance(parts, dict) for parts in found.values()):
        raise InvalidConfig(f'{name} {text!r}: JSON as {{"topic": {{"0": 23}}}} is needed')
    return {topic: dict(_offset(name, topic, *pair) for pair in parts.items()) for topic, parts in found.items()}


def _offset(name: str, topic: str, partition: str, offset: object) -> tuple[int, int]:
    if not re.fullmatch(r"[0-9]{1,9}", partition):
        raise InvalidConfig(f"{name}: {topic!r} has no partition {partition!r}")
    if isinstance(offset, bool) or not isinstance(offset, int) or not EARLIEST <= offset <= OFFSET_MAX:
        raise InvalidConfig(
            f"{name}: {topic}/{partition}: an offset, -2 (earliest) or -1 (latest) is needed, not {offset!r}"
        )
    return int(partition), offset


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions(ConnectionOptions):
    """The options, one field each; `ledgermq_spark.options` has the rules."""

    root: str = option("")
    """root URL of the cluster, or a local folder; `.load(root)` sets it too"""
    servers: str = option("")
    """addresses of brokers, `host:port`, separated by commas. Without `root` the source asks them
    for it once. Beside `root` they are only used to commit for `groupIdForCommit`
    """
    group_id_for_commit: str = option("")
    """streams: the group that shows the query's progress; needs `servers`"""
    topic: str = option("")
    """one topic; give this, `topics` or `topicsPattern`"""
    topics: tuple[str, ...] = option((), _names)
    """several topics, separated by commas"""
    topics_pattern: str = option("", _pattern)
    """a regular expression for whole names of topics; a batch query fails if no topic matches, a stream waits for
    one
    """
    partitions: frozenset[int] | None = option(None, _partitions, "all")
    """of one topic: numbers, separated by commas"""
    starting_offsets: Offsets = option("earliest", _offsets)
    """`earliest`, `latest`, or JSON such as `{"flights": {"0": 23, "1": -2}}`; -2 is earliest, -1
    latest. A partition that is not named is read from its beginning
    """
    ending_offsets: Offsets = option("latest", _offsets)
    """the same: the first offset that is not read; a partition that is not named is read to its end"""
    starting_timestamp: AtTime | None = option(None, _time)
    """instead of `startingOffsets`: from the first record at or after this time,
    `2026-11-21T07:30:00Z` or milliseconds since 1970; reads nothing where all records are older
    """
    ending_timestamp: AtTime | None = option(None, _time)
    """instead of `endingOffsets`: up to the first record at or after this time"""
    max_offsets_per_trigger: int | None = between(None, 1, 10**9, "all")
    """streams: the largest number of records in a batch, divided among partitions in proportion to
    what waits in each
    """
    min_partitions: int = between(1, 1, MIN_PARTITIONS_MAX)
    """the smallest number of tasks, if there are enough records. Otherwise a task has about 128 MiB
    in batches and 32 MiB in streams. A Parquet file is at most one task unless more tasks are asked
    for, and the result of [cleaning](keyed-topics.md) a partition is one task
    """
    fail_on_data_loss: bool = switch(True)
    """fail when requested records are missing: deleted by retention, beyond the log's end, or of a
    deleted topic of a stream. `false`: read what is there
    """
    move_timeout_s: float = above_zero(300.0, "seconds")
    """how long the query waits for each partition that is on its way to another bundle of the cluster: nothing of it
    is read before the move has ended. Then the query fails, a stream too, and can be started again
    """
    include_archive: bool = switch(False)
    """batches: also read what retention moved to the archive of topics that
    [archive](retention.md#archive); timestamps and offsets reach into it
    """
    cut: str = option("", _cut)
    """batches: read the topics as they were at this [cut](branches.md), all at one instant, also what retention or
    deletion has taken since
    """
    include_headers: bool = switch(True)
    """with the column `headers`, where the query gives no schema"""
    typed: bool = switch(False)
    """also the columns `value_typed`, a struct that the [schemas](schemas.md) of the topics make, and `value_error`,
    which says why a value has none. Each named topic needs `value.schema.subject`. All rows are decoded by the task
    that reads them, compacted or not
    """
    tag: str = option("")
    """only records with this tag; several with `||` between them"""
    filter: str = option("", _filter)
    """only records that [pass this filter](filters.md): tags, or a condition over headers"""


NAMES = names_of(GivenOptions)
KAFKA_NAMES = {
    "subscribe": "it is topic, or topics",
    "subscribePattern": "it is topicsPattern",
    "assign": "give topic, and its partitions as partitions",
    "kafka.bootstrap.servers": "give root, the URL of the cluster's store, or servers",
    "startingOffsetsByTimestamp": "it is startingTimestamp, one time for all partitions",
    "endingOffsetsByTimestamp": "it is endingTimestamp, one time for all partitions",
    "startingOffsetsByTimestampStrategy": "leave it out: a start behind all records reads nothing",
    "kafka.group.id": "leave it out, or give groupIdForCommit to show progress as a group's",
    "groupIdPrefix": "leave it out, or give groupIdForCommit to show progress as a group's",
    "minOffsetsPerTrigger": "there is only maxOffsetsPerTrigger",
    "maxTriggerDelay": "there is only maxOffsetsPerTrigger",
}
"""Options of Spark's Kafka source that have other names here."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the options ask for. `root` is empty if only `servers` were given.

    `columns`: in the order of the query. `value_type`: of `value_typed`; None: the query has no such column.
    """

    root: str
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    partitions: frozenset[int] | None = None
    starting_offsets: Offsets = "earliest"
    ending_offsets: Offsets = "latest"
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    tags: frozenset[str] = frozenset()
    filter: str = ""
    offsets_per_trigger_max: int | None = None
    servers: str = ""
    connection: Connection = field(default_factory=Connection)
    group: str = ""
    include_archive: bool = False
    move_timeout_s: float = 300.0
    cut: str = ""
    typed: bool = False
    value_type: pa.DataType | None = None

    def chosen(self, topics: list[str]) -> list[str]:
        """Return those of the cluster's user topics that the query reads; named topics are included
        even if they do not exist.
        """
        if self.topics_pattern is None:
            return list(self.topics)
        return sorted(name for name in topics if re.fullmatch(self.topics_pattern, name))


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options. `given`: as Spark passes them, names in any case. Raises InvalidConfig."""
    values = known_options(given, NAMES, ("path",), KAFKA_NAMES)
    for name, value in given.items():
        if name.lower() == "path":
            values.setdefault("root", value)
    _check_together(values)
    found = parse_known(GivenOptions, values)
    _check_times(found)
    options = SourceOptions(
        root=found.root,
        servers=found.servers,
        connection=found.connection(),
        group=found.group_id_for_commit,
        topics=(found.topic,) if found.topic else found.topics,
        topics_pattern=found.topics_pattern or None,
        partitions=found.partitions,
        starting_offsets=found.starting_timestamp or found.starting_offsets,
        ending_offsets=found.ending_timestamp or found.ending_offsets,
        offsets_per_trigger_max=found.max_offsets_per_trigger,
        min_partitions=found.min_partitions,
        fail_on_data_loss=found.fail_on_data_loss,
        include_archive=found.include_archive,
        move_timeout_s=found.move_timeout_s,
        cut=found.cut,
        typed=found.typed,
        columns=tuple(name for name in COLUMNS if name != "headers" or found.include_headers),
        filter=found.filter,
        tags=frozenset(tag.strip() for tag in found.tag.split("||") if tag.strip()),
    )
    if options.partitions is not None and len(options.topics) != 1:
        raise InvalidConfig("partitions can be chosen of one topic only")
    _check_named("startingOffsets", options.starting_offsets, options)
    _check_named("endingOffsets", options.ending_offsets, options)
    return options


def _check_together(values: Mapping[str, str]) -> None:
    """Check which options are given beside each other."""
    named = [name for name in ("topic", "topics", "topicsPattern") if values.get(name)]
    if len(named) != 1:
        raise InvalidConfig(f"give one of topic, topics and topicsPattern, not {' and '.join(named) or 'none'}")
    if not values.get("root") and not values.get("servers"):
        raise InvalidConfig(
            'the option root is missing: the root URL of the cluster, as .option("root", "s3://bucket/prefix")'
        )
    if values.get("cut") and values.get("includeArchive", "").lower() == "true":
        raise InvalidConfig("give cut or includeArchive, not both: an archive changes after the cut")
    check_servers(values.get("servers", ""))
    if values.get("groupIdForCommit") and not values.get("servers"):
        raise InvalidConfig("groupIdForCommit needs servers: brokers keep the offsets of groups")
    for offsets, time in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if offsets in values and time in values:
            raise InvalidConfig(f"give {offsets} or {time}, not both")


def _check_times(found: GivenOptions) -> None:
    starts, ends = found.starting_timestamp, found.ending_timestamp
    if starts is not None and ends is not None and ends.timestamp_us < starts.timestamp_us:
        raise InvalidConfig("endingTimestamp is before startingTimestamp, so nothing would be read: exchange them")


def _check_named(name: str, offsets: Offsets, options: SourceOptions) -> None:
    """Check that every named topic is read: otherwise a mistyped topic would be read from its
    begin.
    """
    if not isinstance(offsets, Mapping):
        return
    for topic, parts in offsets.items():
        if topic not in options.chosen([topic]):
            raise InvalidConfig(f"{name} names topic {topic!r}, which the query does not read")
        others = sorted(parts.keys() - options.partitions) if options.partitions is not None else []
        if others:
            raise InvalidConfig(f"{name} names {topic}/{others[0]}, and partitions leaves that partition out")
