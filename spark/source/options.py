"""Parse the options of `spark.read.format("ledgermq")` and of `spark.readStream` into values. No
Spark, no store.

| option               | default  |                                                                                    |
|----------------------|----------|------------------------------------------------------------------------------------|
| root                 |          | root URL of the cluster; `.load(root)` gives it too                                |
| servers              |          | instead of root, or beside it: addresses of brokers, which are asked for the root  |
| groupIdForCommit     |          | streams: the group that shows the progress as committed offsets; needs servers     |
| topic                |          | one topic; or `topics`: several, with commas; or `topicsPattern`: a regex          |
| partitions           | all      | of one topic: numbers, with commas                                                 |
| startingOffsets      | earliest | earliest, latest, or JSON as {"topic": {"0": 23, "1": -2}}; -2 earliest, -1 latest |
| endingOffsets        | latest   | the same; the first offset that is not read                                        |
| startingTimestamp    |          | instead: the first record at or after it; ISO 8601 with a zone, or ms since 1970   |
| endingTimestamp      |          | instead: up to the first record at or after it                                     |
| maxOffsetsPerTrigger | all      | streams: so many records a batch at most, of all partitions together               |
| minPartitions        | 1        | at least so many tasks, as far as there are records                                |
| failOnDataLoss       | true     | fail when records asked for were deleted by retention; else read what is left      |
| includeArchive       | false    | batches: with records that retention took, of topics that archive them             |
| includeHeaders       | true     | with the column `headers`, where the query gives no schema                         |
| tag                  |          | only records with this tag; several with "||" between them                         |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ledgermq.client.consuming.message import TABLE_SCHEMA
from ledgermq.client.record import microseconds_of
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.limits import OFFSET_MAX
from spark.options import check_servers, known_options

NAMES = (
    "root",
    "servers",
    "groupIdForCommit",
    "topic",
    "topics",
    "topicsPattern",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeArchive",
    "includeHeaders",
    "tag",
)
COLUMNS = tuple(TABLE_SCHEMA.names)
EARLIEST, LATEST = -2, -1
MIN_PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of this time or a later one; the end if there is none."""

    timestamp_us: int


Offsets = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]] | AtTime


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """`root` is empty if only `servers` were given.

    `columns`: in the order of the query.
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
    offsets_per_trigger_max: int | None = None
    servers: str = ""
    group: str = ""
    include_archive: bool = False

    def chosen(self, topics: list[str]) -> list[str]:
        """Return those of the cluster's user topics that the query reads; named topics are included
        even if they do not exist.
        """
        if self.topics_pattern is None:
            return list(self.topics)
        return sorted(name for name in topics if re.fullmatch(self.topics_pattern, name))


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options. `given`: as Spark passes them, names in any case. Raises InvalidConfig."""
    values = known_options(given, NAMES, ("path",))
    for name, value in given.items():
        if name.lower() == "path":
            values.setdefault("root", value)
    topics, pattern = _topics(values)
    partitions = _partitions(values.get("partitions"), topics)
    if not values.get("root") and not values.get("servers"):
        raise InvalidConfig(
            'the option root is missing: the root URL of the cluster, as .option("root", "s3://bucket/prefix")'
        )
    check_servers(values.get("servers", ""))
    if values.get("groupIdForCommit") and not values.get("servers"):
        raise InvalidConfig("groupIdForCommit needs servers: brokers keep the offsets of groups")
    options = SourceOptions(
        root=values.get("root", ""),
        servers=values.get("servers", ""),
        group=values.get("groupIdForCommit", ""),
        topics=topics,
        topics_pattern=pattern,
        partitions=partitions,
        starting_offsets=_position(values, "startingOffsets", "startingTimestamp", "earliest"),
        ending_offsets=_position(values, "endingOffsets", "endingTimestamp", "latest"),
        offsets_per_trigger_max=(
            _number(values, "maxOffsetsPerTrigger", 1, 10**9) if "maxOffsetsPerTrigger" in values else None
        ),
        min_partitions=_number(values, "minPartitions", 1, MIN_PARTITIONS_MAX),
        fail_on_data_loss=_truth(values, "failOnDataLoss"),
        include_archive=_truth(values, "includeArchive", "false"),
        columns=tuple(name for name in COLUMNS if name != "headers" or _truth(values, "includeHeaders")),
        tags=frozenset(tag.strip() for tag in values.get("tag", "").split("||") if tag.strip()),
    )
    _check_named("startingOffsets", options.starting_offsets, options)
    _check_named("endingOffsets", options.ending_offsets, options)
    return options


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


def _topics(values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("topic", "topics", "topicsPattern") if values.get(name)]
    if len(given) != 1:
        raise InvalidConfig(f"give one of topic, topics and topicsPattern, not {' and '.join(given) or 'none'}")
    if given == ["topicsPattern"]:
        try:
            re.compile(values["topicsPattern"])
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidConfig(
                f"topicsPattern {values['topicsPattern']!r} is no regular expression: {error}"
            ) from error
        return (), values["topicsPattern"]
    if given == ["topic"]:
        return (values["topic"],), None
    names = tuple(dict.fromkeys(name.strip() for name in values["topics"].split(",") if name.strip()))
    if not names:
        raise InvalidConfig("topics names no topic")
    return names, None


def _partitions(text: str | None, topics: tuple[str, ...]) -> frozenset[int] | None:
    if text is None:
        return None
    numbers = [part.strip() for part in text.split(",")]
    if len(topics) != 1:
        raise InvalidConfig("partitions can be chosen of one topic only")
    if not all(re.fullmatch(r"[0-9]{1,9}", number) for number in numbers):
        raise InvalidConfig(f"partitions are numbers with commas between them, not {text!r}")
    return frozenset(map(int, numbers))


def _position(values: Mapping[str, str], offsets: str, time: str, default: Literal["earliest", "latest"]) -> Offsets:
    if time not in values:
        return _offsets(values, offsets, default)
    if offsets in values:
        raise InvalidConfig(f"give {offsets} or {time}, not both")
    text = values[time].strip()
    if re.fullmatch(r"[0-9]{1,15}", text):
        return AtTime(int(text) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidConfig(
            f"{time} {text!r}: a time with its zone is needed, as 2026-11-21T07:30:00Z, or milliseconds since 1970"
        )
    return AtTime(microseconds_of(moment))


def _offsets(values: Mapping[str, str], name: str, default: Literal["earliest", "latest"]) -> Offsets:
    text = values.get(name, default).strip()
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


def _number(values: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = values.get(name, str(least)).strip()
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise InvalidConfig(f"{name} is a number from {least} to {most}, not {text!r}")
    return int(text)


def _truth(values: Mapping[str, str], name: str, default: str = "true") -> bool:
    text = values.get(name, default).strip().lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{name} is true or false, not {text!r}")
    return text == "true"
