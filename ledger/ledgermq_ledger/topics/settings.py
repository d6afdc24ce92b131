"""Declare the settings of a topic: names as in Kafka where Kafka has them, with units and defaults.

Each is declared once, as a field of `TopicSettings`: its name (with dots for underscores), type,
default, what it accepts, and below it the help text of docs/settings.md. Those in
`SYSTEM_NAMES` are written by the controller for internal topics only: users may not choose them,
and they are not in docs/settings.md. A process that does not know one of them refuses the whole
catalog, so it never mistakes the records of such a topic for another kind (docs/upgrades.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ledgermq.errors import InvalidConfig
from ledgermq.hints import did_you_mean
from ledgermq.protocol.batches.record_rules import TIMESTAMP_AFTER_MS
from ledgermq.protocol.levels import LEVELS_MAX
from ledgermq.protocol.naming.schema_ids import CONFLUENT, FRAMINGS, NONE
from ledgermq_ledger.cluster import BUNDLES_MAX
from ledgermq_ledger.schemas.subjects import check_subject_name
from ledgermq_ledger.topics.archive_location import check_archive_url
from ledgermq_ledger.topics.deletion_times import ZONE, check_cron, check_zone
from ledgermq_ledger.topics.parsers.tables import catalog_name, check_iceberg, namespace
from ledgermq_ledger.topics.parsers.values import (
    BYTES,
    MILLISECONDS,
    held_bytes,
    merged_files,
    one_of,
    policy,
    share,
    time_to_live,
    truth,
    whole,
)

PARQUET_TARGET_BYTES_MAX = 2**30
ROW_GROUP_BYTES_MIN = 2**20
PARQUET_MAX_LAG_MS = 60 * 60 * 1000
QUIET_LAG_MS = 24 * 60 * 60 * 1000
"""Age at which a record has to be in Parquet where the file is small, and no setting says otherwise."""
"""A file is built in memory and put in one request, of which S3 takes 5 GiB."""
PARQUET_TARGET_BYTES_MAX_BEFORE = 2**34
"""The largest value that older versions accepted."""

TABLE_KEEP_MS = 24 * 60 * 60 * 1000
GRACE_MS_MAX = 366 * 24 * 60 * 60 * 1000
DEDUP_WINDOW_MS_MAX = 7 * 24 * 60 * 60 * 1000

INTERNAL_KIND = "internal.kind"
COMPACTED = "compacted"
STAGED = "staged"
HIDDEN = "hidden"
HOLDERS = "holders"
"""As compacted; a broker that does not ask this topic who may write to a partition must not own a bundle."""
DELTA = "delta"
ICEBERG = "iceberg"
UNCHECKED, ID, FULL = "none", "id", "full"
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
TRANSACTION_COORDINATORS = "transaction.coordinators"
CLUSTER_BUNDLES = "cluster.bundles"
PARTITIONS_MOVED = "partitions.moved"

PRODUCER_REQUEST_HOLD = "producer_request_hold"
PRODUCER_EXCEPTION = "producer_exception"
CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
BACKLOG_POLICIES = (PRODUCER_REQUEST_HOLD, PRODUCER_EXCEPTION, CONSUMER_BACKLOG_EVICTION)
"""Names as in Pulsar."""

Parser = Callable[[str], Any]
"""Parses text from a user. Raises ValueError with the allowed values."""


def _setting(default: Any, parse: Parser, parse_stored: Parser | None = None) -> Any:
    """Declare a setting. `parse_stored`: also accepts what older versions accepted."""
    return field(default=default, metadata={"parse": parse, "parse_stored": parse_stored or parse})


def _system_setting(default: Any, parse: Parser) -> Any:
    """Declare a setting that only the system sets."""
    return field(default=default, metadata={"parse_stored": parse})


def _file_size_of_any_version(text: str) -> int:
    return min(PARQUET_TARGET_BYTES_MAX, whole(1024, PARQUET_TARGET_BYTES_MAX_BEFORE, BYTES)(text))


@dataclass(frozen=True, slots=True)
class TopicSettings:
    retention_ms: int = _setting(-1, whole(-1, 2**62, MILLISECONDS))
    """Age at which records may be deleted; -1 keeps them forever. 7d and the like are accepted."""
    retention_bytes: int = _setting(-1, whole(-1, 2**62, BYTES))
    """Bytes of Parquet of one partition above which its oldest records may be deleted; -1 sets no
    bound.
    """
    cleanup_policy: str = _setting("delete", policy)
    """delete, or compact to keep the latest record of each key, or compact,delete to also delete
    keys that were not written for `retention.ms`.
    """
    min_cleanable_dirty_ratio: float = _setting(0.5, share)
    """Keyed topics: share, from 0 to 1, of a partition's Parquet bytes that has to be uncleaned
    before cleaning starts. Lower it for less old data, raise it for less work.
    """
    delete_retention_ms: int = _setting(24 * 60 * 60 * 1000, whole(0, 2**62, MILLISECONDS))
    """Keyed topics: how long a tombstone is kept after it was first cleaned. Readers that are slower
    than this can miss a deletion.
    """
    min_compaction_lag_ms: int = _setting(0, whole(0, 2**62, MILLISECONDS))
    """Keyed topics: age below which records are not cleaned."""
    compression_type: str = _setting("producer", one_of("producer", "none", "lz4", "zstd"))
    """Codec that producers use: none, lz4, zstd, or producer to leave it to them."""
    max_message_bytes: int = _setting(1024 * 1024, whole(1, 32 * 1024 * 1024, BYTES))
    """Largest record, with key, value and headers. More than 33488896 counts as this number: with what else a
    request holds, a larger record does not fit into its 33554432 bytes.
    """
    message_timestamp_type: str = _setting(CREATE_TIME, one_of(CREATE_TIME, LOG_APPEND_TIME))
    """Whose timestamp a record keeps: CreateTime, that of its producer; or LogAppendTime, the time at which the
    broker appended it, which never decreases within a partition.
    """
    message_timestamp_after_max_ms: int = _setting(TIMESTAMP_AFTER_MS, whole(-1, 2**63 - 1, MILLISECONDS))
    """How far a record's timestamp may be ahead of the time of its append: a batch with a later one is refused
    as a whole, because it would stop retention and cleaning of its partition until then. It does not apply to
    LogAppendTime and to delayed messages. -1 sets no bound.
    """
    message_timestamp_before_max_ms: int = _setting(-1, whole(-1, 2**63 - 1, MILLISECONDS))
    """How far a record's timestamp may be behind the time of its append: a batch with an earlier one is refused
    as a whole. It does not apply to LogAppendTime and to delayed messages. -1 sets no bound.
    """
    message_ttl_ms: int | None = _setting(None, time_to_live)
    """Time to live of messages without their own, counted from their timestamp: consumers skip those that
    are older. Not set: the broker's `message_ttl_ms`; -1: none.
    """
    message_ttl_ms_max: int | None = _setting(None, time_to_live)
    """Longest time to live of any message, counted from its timestamp; a longer one ends then. Not set: the
    broker's `message_ttl_ms_max`; -1: none.
    """
    dedup_window_ms: int = _setting(0, whole(0, DEDUP_WINDOW_MS_MAX, MILLISECONDS))
    """How long the ids of messages (`send(…, id=…)`) are remembered after their append: a message with the same
    id is not stored again in its partition within this time. 0: messages are not deduplicated.
    """
    priority_levels: int = _setting(1, whole(1, LEVELS_MAX, "of levels is needed"))
    """Levels of priority that producers may choose (`send(…, priority=…)`): partition p is of level p modulo this
    number, and consumers read more of higher levels. The topic needs at least as many partitions. 1: none.
    """
    delayed_pending_max: int = _setting(-1, whole(-1, 2**62, "of messages is needed"))
    """Delayed messages of the topic that may wait at once; above it they are refused, and producers try again.
    Each bundle allows the share that its partitions are of the topic's. -1 sets no bound.
    """
    accept_publish: bool = _setting(True, truth)
    """Set false to refuse produce requests."""
    accept_subscribe: bool = _setting(True, truth)
    """Set false to refuse fetch requests."""
    backlog_quota_bytes: int = _setting(-1, whole(-1, 2**62, BYTES))
    """Bytes of one partition behind its slowest group above which `backlog.quota.policy` applies; -1 sets no
    quota.
    """
    backlog_quota_ms: int = _setting(-1, whole(-1, 2**62, MILLISECONDS))
    """Age of the oldest record of a partition that its slowest group has not committed above which
    `backlog.quota.policy` applies; -1 sets no quota.
    """
    backlog_quota_policy: str = _setting(PRODUCER_REQUEST_HOLD, one_of(*BACKLOG_POLICIES))
    """What happens above a backlog quota: producer_request_hold lets producers wait, producer_exception refuses
    their records, consumer_backlog_eviction deletes the oldest records.
    """
    parquet_target_bytes: int = _setting(
        128 * 1024 * 1024, whole(1024, PARQUET_TARGET_BYTES_MAX, BYTES), _file_size_of_any_version
    )
    """Size that a Parquet file should have; 1073741824 at most. Lower it for less memory during
    compaction.
    """
    parquet_max_lag_ms: int = _setting(PARQUET_MAX_LAG_MS, whole(0, 2**62, MILLISECONDS))
    """Age at which a record has to be in Parquet, if the partition has `parquet.file.min.bytes` by then. Lower it
    for fresher tables, at the price of smaller files.
    """
    parquet_file_min_bytes: int = _setting(4 * 1024 * 1024, whole(0, PARQUET_TARGET_BYTES_MAX, BYTES))
    """Bytes in segments below which a partition waits for `parquet.file.max.lag.ms`, so that quiet topics do not make
    many small files. 0: none waits. Keyed topics do not wait.
    """
    parquet_file_max_lag_ms: int | None = _setting(None, whole(0, 2**62, MILLISECONDS))
    """Age at which a record has to be in Parquet however small its file will be. Not set: a day; as
    `parquet.max.lag.ms` says if that is set; a quarter of `retention.ms` if that is shorter.
    """
    parquet_merge_files: int = _setting(0, merged_files)
    """Small Parquet files of a partition that get one merged file, which brokers and Spark's source read instead; 0:
    none, 2 at least. The small ones stay for plain readers, so their bytes are stored twice. Not for keyed topics.
    """
    parquet_row_group_bytes: int = _setting(
        16 * 1024 * 1024, whole(ROW_GROUP_BYTES_MIN, PARQUET_TARGET_BYTES_MAX, BYTES)
    )
    """Decoded bytes of a row group of a Parquet file, about; 1048576 at least. Readers skip whole row groups by
    their statistics: lower it for queries of a short time, raise it for slightly smaller files.
    """
    parquet_appended: bool = _setting(True, truth)
    """Write the column `appended`, the store's time of each record's append, into Parquet files. Set false while
    a reader cannot take files with and without it together.
    """
    parquet_bloom_key: bool = _setting(False, truth)
    """Set true to write a Bloom filter of the key column, for queries by key."""
    value_schema_subject: str = _setting("", check_subject_name)
    """The subject whose schemas the topic's values have, such as orders-value: Parquet files get the columns
    `value_typed`, the value as a struct, and `value_error`. Not set: they get none.
    """
    value_schema_framing: str = _setting(CONFLUENT, one_of(*FRAMINGS))
    """How a value names its schema: confluent, five bytes in front of it; header, the id as a decimal number in the
    header ledgermq.schema-id; none, all values are of `value.schema.version`.
    """
    value_schema_version: int = _setting(0, whole(0, 2**31 - 1, "of a version is needed"))
    """The version of the subject that values without a frame have (`value.schema.framing=none`). 0: the newest one.
    """
    value_validate: str = _setting(UNCHECKED, one_of(UNCHECKED, ID, FULL))
    """Which values brokers take: none, any; id, those that name a schema of `value.schema.subject`; full, those that
    can be decoded by it, too, which costs what decoding costs. A batch with another value is refused as a whole.
    """
    delete_action: str = _setting("delete", one_of("delete", "archive"))
    """What happens to records when retention removes them: delete, or archive to move them to
    `archive.url`.
    """
    delete_when: str = _setting("", check_cron)
    """Cron expression of the moments at which retention takes effect; not set: at any time."""
    delete_when_timezone: str = _setting(ZONE, check_zone)
    """Time zone in which `delete.when` is evaluated, such as Europe/Berlin."""
    archive_url: str = _setting("", check_archive_url)
    """Store URL of the archive; not set: the folder archive/ of the cluster's root."""
    legal_hold: bool = _setting(False, truth)
    """Set true to keep every record: retention and cleaning delete nothing, and deletion of records
    or of the topic is refused.
    """
    topic_delete_grace_ms: int | None = _setting(None, whole(0, GRACE_MS_MAX, MILLISECONDS))
    """How long the topic can be brought back after it was deleted (`ledgermq topic undelete`); until then it keeps
    its name and its storage. Not set: the brokers' `topic_delete_grace_ms`; 0: not at all.
    """
    table_format: str = _setting("none", one_of("none", DELTA, ICEBERG))
    """delta or iceberg to keep a table of the topic's Parquet files up to date, which readers of that format open with
    a filter that prunes, and at a former version; none. The log of a Delta table lies in the topic's folder: see
    `table.delta.place`. An Iceberg table is in a catalog: see `table.catalog`. The Delta table of a keyed topic has the
    latest record of each key.
    """
    table_delta_place: str = _setting("", one_of("", "topic"))
    """Set topic to agree that the log of a Delta table lies in the topic's folder, where another program that tries
    to write to the table leaves files that plain readers take for records. Readers get credentials that cannot write.
    """
    table_catalog: str = _setting("", catalog_name)
    """Name of the catalog of an Iceberg table, as the brokers' PyIceberg configuration has it, for instance by the
    environment variables `PYICEBERG_CATALOG__<NAME>__URI` and `PYICEBERG_CATALOG__<NAME>__WAREHOUSE`.
    """
    table_namespace: str = _setting("", namespace)
    """Namespace of an Iceberg table in its catalog; dots separate levels. The table has the topic's name."""
    table_keep_ms: int = _setting(TABLE_KEEP_MS, whole(60_000, 2**62, MILLISECONDS), whole(0, 2**62, MILLISECONDS))
    """How long a version of the topic's table can be read after the next one came, and its files stay, whatever
    retention says; 60000 at least.
    """
    table_hold_max_bytes: int = _setting(-1, held_bytes)
    """Bytes of Parquet files below the log start that the topic's table may keep from deletion. Above it the table
    is unset, as by `table.format=none`, and an alarm says so; -1 sets no bound. Set it where storage is scarcer than
    former versions are dear.
    """
    internal_kind: str = _system_setting(COMPACTED, one_of(COMPACTED, STAGED, HIDDEN, HOLDERS))
    """What an internal topic holds: compacted, the latest record of each key; staged, batches that
    wait in segments, and are dropped below the log start; hidden, data whose Parquet files only
    LedgerMQ reads.
    """
    transaction_coordinators: int = _system_setting(0, whole(1, 2**31 - 1, "of partitions is needed"))
    """Partitions over which transactional ids are spread; it never changes. 0: not set."""
    cluster_bundles: int = _system_setting(0, whole(2, BUNDLES_MAX, "of bundles is needed"))
    """Of `__metadata` only: bundles of the cluster, bundle 0 included, since some were added; it never
    becomes less. 0: none were added.
    """
    partitions_moved: bool = _system_setting(False, truth)
    """Some partition moves between bundles, or has moved: the topic's record says which. A process that
    does not know moves refuses the catalog because of this name.
    """
    table_generation: int = _system_setting(0, whole(1, 2**63 - 1, "of a generation is needed"))
    """Of a topic with a table: it rises whenever a user sets one. 0: no table. A process that does not know tables
    refuses the catalog because of this name, and of `table.format`.
    """

    table_let_go: int = _system_setting(0, whole(1, 2**63 - 1, "of a generation is needed"))
    """The generation of a table that was unset because of `table.hold.max.bytes`, until a user sets or unsets
    `table.format`. 0: none was.
    """

    @property
    def keyed(self) -> bool:
        """Return True if the latest record of each key is kept."""
        return self.cleanup_policy.startswith("compact")

    def parquet_lag_ms(self, size_bytes: int) -> int:
        """Return the age at which the oldest record of a partition has to become Parquet, with so many bytes of
        it in segments.
        """
        if size_bytes >= self.parquet_file_min_bytes or self.keyed or self.internal_kind == HIDDEN:
            return self.parquet_max_lag_ms
        longest_ms = self.parquet_file_max_lag_ms
        if longest_ms is None:
            wants_it_sooner = self.parquet_max_lag_ms != PARQUET_MAX_LAG_MS
            longest_ms = self.parquet_max_lag_ms if wants_it_sooner else QUIET_LAG_MS
        if self.retention_ms >= 0:
            longest_ms = min(longest_ms, self.retention_ms // 4)
        return max(self.parquet_max_lag_ms, longest_ms)

    @property
    def has_backlog_quota(self) -> bool:
        """Return True if records that no group has committed are bounded, by bytes or by age."""
        return self.backlog_quota_bytes >= 0 or self.backlog_quota_ms >= 0

    @property
    def append_time(self) -> bool:
        """Return True if brokers set the timestamps of records."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def forgets_keys(self) -> bool:
        """Return True for `compact,delete` with a bound: keys that were not written for
        `retention_ms` are removed.
        """
        return self.cleanup_policy == "compact,delete" and self.retention_ms >= 0


_FIELDS = {field.name.replace("_", "."): field for field in fields(TopicSettings)}
NAMES = tuple(name for name, field in _FIELDS.items() if "parse" in field.metadata)
"""The settings that users may choose."""
SYSTEM_NAMES = tuple(name for name in _FIELDS if name not in NAMES)


def parse_settings(raw: Mapping[str, str]) -> TopicSettings:
    """Parse settings that a user chose. Raises InvalidConfig, naming the setting and what it may be."""
    return _parse(raw, "parse")


def check_together(settings: TopicSettings, partitions: int) -> TopicSettings:
    """Return the settings of a topic with so many partitions. Raises InvalidConfig if some of them contradict one
    another.
    """
    if settings.backlog_quota_policy == CONSUMER_BACKLOG_EVICTION and settings.cleanup_policy == "compact":
        raise InvalidConfig(
            "backlog.quota.policy=consumer_backlog_eviction deletes the oldest records, and cleanup.policy=compact"
            " keeps the latest one of each key: choose another policy, or cleanup.policy=compact,delete"
        )
    if settings.table_format == DELTA and not settings.table_delta_place:
        raise InvalidConfig(
            "table.format=delta needs table.delta.place=topic: the table's log lies in the topic's folder, where a"
            " program that tries to write to the table leaves files that plain readers take for records"
        )
    if settings.table_format == ICEBERG:
        check_iceberg(settings.table_catalog, settings.table_namespace, partitions, keyed=settings.keyed)
    if settings.value_schema_subject:
        if settings.keyed:
            raise InvalidConfig("a keyed topic (cleanup.policy) cannot have typed values (value.schema.subject) yet")
        if not settings.parquet_appended:
            raise InvalidConfig(
                "value.schema.subject needs parquet.appended=true: without it files have no field ids, by which typed"
                " columns are found"
            )
    if settings.value_validate != UNCHECKED and not settings.value_schema_subject:
        raise InvalidConfig(f"value.validate={settings.value_validate} needs value.schema.subject")
    if settings.value_validate == ID and settings.value_schema_framing == NONE:
        raise InvalidConfig("value.validate=id needs values that name their schema (value.schema.framing)")
    if settings.keyed:
        _check_keyed(settings)
    if settings.priority_levels > partitions:
        raise InvalidConfig(
            f"priority.levels={settings.priority_levels} needs as many partitions at least, one for each level; the"
            f" topic has {partitions}"
        )
    return settings


def _check_keyed(settings: TopicSettings) -> None:
    if settings.parquet_merge_files:
        raise InvalidConfig("the files of a keyed topic (cleanup.policy) are not merged: unset parquet.merge.files")
    if settings.priority_levels > 1:
        raise InvalidConfig(
            "a keyed topic (cleanup.policy) cannot have priority.levels: messages of one key would be in several"
            " partitions"
        )


def parse_stored_settings(raw: Mapping[str, str]) -> TopicSettings:
    """Parse the settings of an existing topic: a file size that an older version accepted counts as
    the largest of today. Raises as `parse_settings`.
    """
    return _parse(raw, "parse_stored")


def _parse(raw: Mapping[str, str], parser: str) -> TopicSettings:
    values = {}
    for name, text in raw.items():
        if name not in _FIELDS:
            raise InvalidConfig(f"unknown topic setting {name!r}; {did_you_mean(name, NAMES)}")
        found = _FIELDS[name]
        if parser not in found.metadata:
            raise InvalidConfig(f"topic setting {name!r} is set by the system only; leave it out")
        try:
            values[found.name] = found.metadata[parser](text)
        except ValueError as error:
            raise InvalidConfig(f"topic setting {name}: {text!r} is not allowed: {error}") from error
    return TopicSettings(**values)
