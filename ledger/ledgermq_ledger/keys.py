"""Name all objects in a cluster's root; no other module spells a key (docs/design.md, Keys).

    cluster.json
    brokers/<broker-id>.json
    ledgers/<bundle:04d>/segments/<slot:020d>
    ledgers/<bundle:04d>/checkpoints/<number:020d>
    ledgers/<bundle:04d>/compactions/<plan:020d>
    ledgers/<bundle:04d>/files/<plan:020d>
    ledgers/<bundle:04d>/snapshots/<plan:020d>
    ledgers/0000/<segments, checkpoints, compactions or snapshots>/<number:020d>.copy
        the same bytes again (`ledgermq_ledger.root.copies`)
    parquet/topic=<topic>/partition=<p>/<first:020d>-<last:020d>-<topic id>-<plan>.parquet
    hidden/_<topic id>/partition=<p>/<name as below parquet/>           of a hidden topic: no plain reader sees it
    archive/topic=<topic>/partition=<p>/<name as below parquet/>        what retention took, where it archives
    archive/_cluster.json                                  whose archive it is
    keyed/_<topic id>/partition=<p>/versions/<number:020d>
    keyed/_<topic id>/partition=<p>/files/<first:020d>-<last:020d>-<number>-<attempt hex>.parquet
    sinks/<write>/staged/<epoch:020d>-<put id hex>         rows of a task of a Spark sink, not published yet
    sinks/<write>/decided/<epoch:020d>                     which of them are epoch's, or which transaction
    sinks/<write>/decided/<epoch:020d>-<attempt:06d>       the same, after such transactions were aborted
    sinks/<write>/done/<epoch:020d>                        all of them are in their topics
    parquet/_tmp/<fence>/              made by the store for fence `<bundle:04d>-<plan:020d>-<plan put id hex>`

Slots, checkpoints and plans are numbered from 1; number 0 stands for "none yet".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ledgermq.errors import InvalidTopicName
from ledgermq.protocol.naming.names import NAME_CHARS_MAX, is_new_name
from ledgermq_ledger.object_store.contract import PASSING

CLUSTER = "cluster.json"
RESTORE = "restore.json"
LEDGERS = "ledgers/"
BROKERS = "brokers/"
PARQUET, KEYED, SINKS, HIDDEN, MERGED = PASSING
PARQUET_FOLDERS = (PARQUET, HIDDEN)
"""Where the Parquet files of partitions' logs lie."""
ARCHIVE = "archive/"
ARCHIVE_OWNER = "archive/_cluster.json"

METADATA_BUNDLE = 0
METADATA_TOPIC = "__metadata"
METADATA_TOPIC_ID = 0
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transactions"
STAGED_TOPIC = "__staged"
"""Batches of open transactions, as their producers sent them."""
TIMERS_TOPIC = "__timers"
DELAYED_TOPIC = "__delayed"
"""Timed messages that were sent just now or are due within minutes; staged."""
DELAYED_FAR_TOPIC = "__delayed_far"
"""Timed messages that are due later; hidden."""
SHARES_TOPIC = "__shares"
"""The state of queue groups."""
HOLDERS_TOPIC = "__holders"
"""Which exclusive producers have partitions for themselves."""
NEAR_PARTITIONS = 17
"""Partitions of `__delayed` in each user bundle: the first takes what producers send."""
FAR_PARTITIONS = 128
"""Partitions of `__delayed_far` in each user bundle."""


class PartitionId(NamedTuple):
    """A partition of a topic, by the topic's id."""

    topic_id: int
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


def check_topic_name(name: str) -> str:
    """Return the name if it follows Kafka's rule: 1 to 249 of ``[A-Za-z0-9._-]``, not "." or "..".
    Raises InvalidTopicName.
    """
    if not name or len(name) > NAME_CHARS_MAX:
        raise InvalidTopicName(f"a topic name has 1 to {NAME_CHARS_MAX} characters, this one has {len(name)}")
    if not is_new_name(name):
        raise InvalidTopicName(
            f"topic name {name!r}: use letters, digits, '.', '_' and '-'; '.' and '..' are not allowed"
        )
    return name


def is_internal(topic: str) -> bool:
    """Return True if the name starts with two underscores: such topics belong to the system."""
    return topic.startswith("__")


def bundle_partition(bundle: int) -> int:
    """Return the partition in a user bundle of `__timers`, `__shares` and `__holders`, which have one in each."""
    assert bundle > METADATA_BUNDLE, bundle
    return bundle - METADATA_BUNDLE - 1


def near_partition(bundle: int, place: int) -> int:
    """Return the partition of `__delayed` at a place of a user bundle, from 0 to NEAR_PARTITIONS - 1."""
    assert 0 <= place < NEAR_PARTITIONS, place
    return bundle_partition(bundle) * NEAR_PARTITIONS + place


def far_partition(bundle: int, place: int) -> int:
    """Return the partition of `__delayed_far` at a place of a user bundle, from 0 to FAR_PARTITIONS - 1."""
    assert 0 <= place < FAR_PARTITIONS, place
    return bundle_partition(bundle) * FAR_PARTITIONS + place


def broker(broker_id: str) -> str:
    return f"{BROKERS}{broker_id}.json"


_BROKER = re.compile(r"brokers/([A-Za-z0-9._-]{1,64})\.json\Z")


def parse_broker(key: str) -> str | None:
    """Return the broker whose heartbeat has this key; None if no LedgerMQ process put it."""
    found = _BROKER.match(key)
    return found[1] if found else None


def ledger(bundle: int) -> str:
    return f"ledgers/{bundle:04d}/"


_LEDGER = re.compile(r"ledgers/([0-9]{4,})/(?:segments|checkpoints|compactions|files|snapshots)/[0-9]{20}\Z")


def parse_ledger(key: str) -> int | None:
    """Return the bundle of an object in a ledger; None for other keys, also if `ledger` spells them otherwise."""
    found = _LEDGER.match(key)
    return int(found[1]) if found and key.startswith(ledger(int(found[1]))) else None


def segments(bundle: int) -> str:
    return f"{ledger(bundle)}segments/"


def segment(bundle: int, slot: int) -> str:
    return f"{segments(bundle)}{slot:020d}"


def checkpoints(bundle: int) -> str:
    return f"{ledger(bundle)}checkpoints/"


def checkpoint(bundle: int, number: int) -> str:
    return f"{checkpoints(bundle)}{number:020d}"


def compactions(bundle: int) -> str:
    return f"{ledger(bundle)}compactions/"


def compaction(bundle: int, plan: int) -> str:
    return f"{compactions(bundle)}{plan:020d}"


def file_pages(bundle: int) -> str:
    return f"{ledger(bundle)}files/"


def file_page(bundle: int, plan: int) -> str:
    return f"{file_pages(bundle)}{plan:020d}"


def snapshots(bundle: int) -> str:
    return f"{ledger(bundle)}snapshots/"


def snapshot(bundle: int, plan: int) -> str:
    return f"{snapshots(bundle)}{plan:020d}"


_NUMBER = re.compile(r"[0-9]{20}\Z")


def is_numbered(key: str, folder: str) -> bool:
    """Return True if `key` is an object of `folder` (ends with "/") with a number for its name."""
    return key.startswith(folder) and _NUMBER.match(key, len(folder)) is not None


def number(key: str) -> int:
    """Return the slot, checkpoint or plan number at the end of the key of a numbered object."""
    return int(key.rsplit("/", 1)[1])


COPY = ".copy"
_COPIED = re.compile(rf"ledgers/{METADATA_BUNDLE:04d}/(?:segments|checkpoints|compactions|snapshots)/[0-9]{{20}}\Z")
_COPIED_PREFIX = ledger(METADATA_BUNDLE)


def copy_of(key: str) -> str | None:
    """Return the key of an object's second copy; None if it has none: only what the metadata needs is stored twice."""
    return key + COPY if key.startswith(_COPIED_PREFIX) and _COPIED.match(key) else None


def original_of(key: str) -> str | None:
    """Return the key of the object whose second copy is at `key`; None if `key` is not a copy's."""
    original = key.removesuffix(COPY)
    return original if original != key and copy_of(original) == key else None


def fence(bundle: int, plan: int, put_id: bytes) -> str:
    return f"{bundle:04d}-{plan:020d}-{put_id.hex()}"


@dataclass(frozen=True, slots=True)
class FenceName:
    bundle: int
    plan: int
    put_id: bytes


_FENCE = re.compile(r"(\d{4,})-(\d{20})-([0-9a-f]{32})\Z")


def parse_fence(name: str) -> FenceName | None:
    found = _FENCE.match(name)
    return FenceName(int(found[1]), int(found[2]), bytes.fromhex(found[3])) if found else None


def parquet_topic(topic: str) -> str:
    return f"{PARQUET}topic={topic}/"


def parquet_partition(topic: str, partition: int) -> str:
    return f"{parquet_topic(topic)}partition={partition}/"


def hidden_topic(topic_id: int) -> str:
    return f"{HIDDEN}_{topic_id}/"


def hidden_partition(place: PartitionId) -> str:
    return f"{hidden_topic(place.topic_id)}partition={place.partition}/"


@dataclass(frozen=True, slots=True)
class ParquetName:
    """The parts of a Parquet file's key; `last_offset` inclusive. `topic`: None for a file of a hidden topic."""

    topic: str | None
    partition: int
    first_offset: int
    last_offset: int
    topic_id: int
    plan: int

    @property
    def key(self) -> str:
        if self.topic is None:
            folder = hidden_partition(PartitionId(self.topic_id, self.partition))
        else:
            folder = parquet_partition(self.topic, self.partition)
        return f"{folder}{self.first_offset:020d}-{self.last_offset:020d}-{self.topic_id}-{self.plan}.parquet"


_FILE = r"partition=(\d+)/(\d{20})-(\d{20})-(\d+)-(\d+)\.parquet\Z"
_PARQUET = re.compile(rf"parquet/topic=([^/]+)/{_FILE}")
_HIDDEN = re.compile(rf"hidden/_(\d+)/{_FILE}")


def archived(key: str) -> str:
    """Return the key of a Parquet file in an archive."""
    return ARCHIVE + key.removeprefix(PARQUET)


def parse_archived(key: str) -> ParquetName | None:
    """Parse the name of an archived file; its `key` is the one that it had below `parquet/`."""
    return _parse_shown(PARQUET + key.removeprefix(ARCHIVE)) if key.startswith(ARCHIVE) else None


def parse_parquet(key: str) -> ParquetName | None:
    """Parse a key; None if no LedgerMQ process wrote it."""
    return _parse_hidden(key) if key.startswith(HIDDEN) else _parse_shown(key)


def _parse_shown(key: str) -> ParquetName | None:
    found = _PARQUET.match(key)
    return ParquetName(found[1], *(int(found[i]) for i in range(2, 7))) if found else None


def _parse_hidden(key: str) -> ParquetName | None:
    found = _HIDDEN.match(key)
    name = ParquetName(None, *(int(found[i]) for i in range(2, 7))) if found else None
    return name if name is not None and name.key == key else None


def keyed_topic(topic_id: int) -> str:
    """Return the folder of all partitions of a keyed topic."""
    return f"{KEYED}_{topic_id}/"


def keyed_folder(place: PartitionId) -> str:
    """Return the folder of a keyed topic's partition, with its versions and their files (docs/decisions/0022)."""
    return f"{keyed_topic(place.topic_id)}partition={place.partition}/"


def keyed_versions(place: PartitionId) -> str:
    return f"{keyed_folder(place)}versions/"


def keyed_files(place: PartitionId) -> str:
    return f"{keyed_folder(place)}files/"


def keyed_version(place: PartitionId, number: int) -> str:
    return f"{keyed_versions(place)}{number:020d}"


def keyed_file(place: PartitionId, first: int, last: int, number: int, attempt: bytes) -> str:
    """Return the key of a file of offsets from `first` to `last`, not all of which it need hold."""
    return f"{keyed_files(place)}{first:020d}-{last:020d}-{number}-{attempt.hex()}.parquet"


_KEYED = re.compile(r"keyed/_(\d+)/partition=(\d+)/(versions|files)/(.+)\Z")
_KEYED_FILE = re.compile(r"(\d{20})-(\d{20})-(\d+)-[0-9a-f]{32}\.parquet\Z")


@dataclass(frozen=True, slots=True)
class KeyedName:
    """The parts of a key below `keyed/`.

    `number`: that of this version, or of the version for which this file was made.
    """

    place: PartitionId
    number: int
    is_file: bool


def parse_keyed(key: str) -> KeyedName | None:
    """Parse a key; None if no LedgerMQ process wrote it."""
    found = _KEYED.match(key)
    if found is None:
        return None
    place = PartitionId(int(found[1]), int(found[2]))
    if found[3] == "versions":
        return KeyedName(place, int(found[4]), False) if _NUMBER.match(found[4]) else None
    file = _KEYED_FILE.match(found[4])
    return KeyedName(place, int(file[3]), True) if file else None


def sink_staged(write: str) -> str:
    return f"{SINKS}{write}/staged/"


def sink_staged_of(write: str, epoch: int) -> str:
    """Return the prefix of the keys of all rows that are staged for an epoch."""
    return f"{sink_staged(write)}{epoch:020d}-"


def sink_staged_rows(write: str, epoch: int, put_id: bytes) -> str:
    return f"{sink_staged_of(write, epoch)}{put_id.hex()}"


def sink_decided(write: str) -> str:
    return f"{SINKS}{write}/decided/"


def sink_decision(write: str, epoch: int, attempt: int = 0) -> str:
    """Return the key of a decision. `attempt`: number of those before it whose transactions were aborted."""
    return f"{sink_decided(write)}{epoch:020d}" + (f"-{attempt:06d}" if attempt else "")


def sink_done(write: str) -> str:
    return f"{SINKS}{write}/done/"


def sink_done_epoch(write: str, epoch: int) -> str:
    return f"{sink_done(write)}{epoch:020d}"


@dataclass(frozen=True, slots=True)
class SinkName:
    """`kind`: staged, decided or done."""

    write: str
    kind: str
    epoch: int


_SINK = re.compile(
    r"sinks/([A-Za-z0-9_=-]{1,100})/(?:(staged)/(\d{20})-[0-9a-f]{32}|(decided|done)/(\d{20})|(decided)/(\d{20})-\d{6})\Z"
)


def parse_sink(key: str) -> SinkName | None:
    """Parse a key; None if no LedgerMQ process wrote it."""
    found = _SINK.match(key)
    return (
        SinkName(found[1], found[2] or found[4] or found[6], int(found[3] or found[5] or found[7])) if found else None
    )
