"""Every persisted protobuf: a golden file that stays readable forever, a round trip, and damage
that is found.

A golden file is never written again: `python -m tests.unit.ledger.test_persisted_formats` creates
only those that are missing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import CHECKSUM, ClusterSettings, checksum_of, read_cluster
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.cut import decode_cut
from ledgermq_ledger.cuts.record import encode
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import MOVES_VERSION, decode_checkpoint, encode_checkpoint
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal
from ledgermq_ledger.log.chains.plans import HAND_OVER_VERSION, encode_plan
from ledgermq_ledger.log.chains.snapshot import decode_snapshot, encode_snapshot
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.merging.merged_list import decode_list, encode_list
from ledgermq_ledger.parquet.merging.names import MergedName
from ledgermq_ledger.topics.settings import PARTITIONS_MOVED
from ledgermq_ledger.topics.topic import PartitionMove, decode_topic_record
from tests.stores.backends import seeded_sources

GOLDEN = Path(__file__).parents[2] / "golden"


def checkpoint() -> fmt.Checkpoint:
    state = fmt.LedgerState(slot=40, epoch=3, writer=b"w" * 16, last_put_id=b"l" * 16, forgotten_to=4)
    state.ends.add(topic_id=7, partition=1, end=900)
    state.producers.add(producer_id=b"i" * 16, topic_id=7, partition=1, epoch=0, last_slot=39).batches.add(
        sequence=10, record_count=5, base_offset=895, slot=39
    )
    state.claims.add(slot=30, epoch=3, created_ms=1_700_000_000_000, broker="b1")
    whole = fmt.Checkpoint(
        bundle=2,
        number=6,
        put_id=b"c" * 16,
        created_ms=1_700_000_000_001,
        state=state,
        trim_slot=30,
        finished_plan=2,
        planned_slot=33,
    )
    whole.metadata_offset = 12
    whole.partitions.add(topic_id=7, partition=1, log_start=10, parquet_start=0, parquet_end=800, newest_page=2)
    whole.removed_topics.add(
        topic_id=5, topic="gone", named_at_plan=1, files_deleted=True, barrier_ms=1_700_000_000_000
    )
    return whole


def checkpoint_with_facts() -> fmt.Checkpoint:
    """What later versions added: settings that protect records, deletion on demand."""
    whole = checkpoint()
    whole.snapshot_bytes = 4096
    whole.partitions[0].deleted_to = 10
    whole.topic_facts.add(topic_id=7, version=12, held=True)
    return whole


def checkpoint_with_a_table() -> fmt.Checkpoint:
    """The topic's Parquet files are a table, and its gate has risen."""
    whole = checkpoint_with_facts()
    whole.partitions[0].table_start = 5
    whole.topic_facts[0].table = 11
    return whole


def checkpoint_with_ids() -> fmt.Checkpoint:
    """Ids of messages, for deduplication."""
    whole = checkpoint()
    whole.state.append_us = 1_700_000_000_000_000
    ids = b"i" * 16 + bytes(16)
    whole.state.message_ids.add(
        topic_id=7, partition=1, base_offset=898, until_us=1_700_000_060_000_000, slot=39, ids=ids
    )
    return whole


def checkpoint_with_moves() -> fmt.Checkpoint:
    """One partition has left, with a producer and ids; another one came."""
    whole = checkpoint()
    sealed = whole.state.seals.add(topic_id=7, partition=0, move=21, end=40, target=3, append_us=9)
    producer = sealed.producers.add(producer_id=b"i" * 16, topic_id=7, partition=0, epoch=1, last_slot=38)
    producer.batches.add(sequence=0, record_count=5, base_offset=35, slot=38)
    sealed.message_ids.add(topic_id=7, partition=0, base_offset=35, until_us=99, slot=38, ids=b"i" * 16)
    whole.state.opens.add(topic_id=7, partition=1, move=20, start=890, source=4)
    return whole


def checkpoint_with_files_handed_over() -> fmt.Checkpoint:
    """One partition is forgotten, one is frozen, and one came with its files."""
    whole = checkpoint_with_moves()
    whole.partitions[0].taken_over = 20
    whole.partitions.add(topic_id=8, partition=0, parquet_end=5, newest_page=1, frozen=30)
    whole.partitions.add(topic_id=8, partition=1, frozen=31, forgotten=True)
    return whole


def checkpoint_with_pins() -> fmt.Checkpoint:
    whole = checkpoint()
    whole.pins.add(cut=41, base=5)
    whole.pins.add(cut=97, base=6)
    return whole


def cut() -> fmt.Cut:
    whole = fmt.Cut(id=41, put_id=b"p" * 16, name="eod", created_ms=5)
    whole.bundles.add(bundle=0, base=3, slot=40)
    whole.bundles.add(bundle=1, base=6, slot=900).partitions.add(topic_id=7, partition=1, version=12)
    return whole


def plan_that_hands_over() -> fmt.CompactionPlan:
    whole = plan()
    whole.freezes.add(topic_id=8, partition=0, move=30)
    takeover = whole.takeovers.add()
    takeover.counters.MergeFrom(
        fmt.PartitionCheckpoint(topic_id=9, partition=1, log_start=2, parquet_end=5, newest_page=7, frozen=32)
    )
    takeover.files.add(key="parquet/y", first_offset=0, last_offset=4, size=99, plan=7, committed_ms=3)
    return whole


def plan() -> fmt.CompactionPlan:
    whole = fmt.CompactionPlan(
        bundle=2, number=3, put_id=b"p" * 16, created_ms=5, checkpoint=6, last_slot=40, trim_slot=41
    )
    whole.slots.add(slot=34, put_id=b"s" * 16, kind=fmt.DATA, tail_length=99)
    whole.files.add(topic_id=7, topic="t", partition=1, first_offset=800, last_offset=899, key="parquet/x", slots=[34])
    return whole


def plan_with_typed_values() -> fmt.CompactionPlan:
    whole = plan()
    whole.metadata_offset = 77
    whole.files[0].schema.MergeFrom(fmt.PlannedSchema(subject="t-value", framing="confluent", version=2, rules=1))
    return whole


def page() -> fmt.FilePage:
    whole = fmt.FilePage(bundle=2, plan=3, put_id=b"p" * 16)
    files = whole.partitions.add(topic_id=7, partition=1, previous_page=1, previous_count=4)
    files.files.add(
        key="parquet/x", first_offset=800, last_offset=899, size=1234, timestamp_min_us=1, timestamp_max_us=2, plan=3
    )
    return whole


def snapshot() -> fmt.Snapshot:
    whole = fmt.Snapshot(bundle=0, plan=3, put_id=b"p" * 16)
    part = whole.partitions.add(topic_id=0, partition=0, end=12)
    part.records.add(offset=3, key=b"topic/t", value=b"v", timestamp_us=9)
    return whole


def merged_list() -> fmt.MergedList:
    place, put_id = keys.PartitionId(7, 1), b"m" * 16
    whole = fmt.MergedList(topic_id=7, partition=1, number=3, put_id=put_id)
    key = MergedName(place, 3, put_id, (800, 999)).key
    whole.files.add(key=key, first_offset=800, last_offset=999, size=2345, plan=3, committed_ms=5)
    return whole


def checkpoint_with_merged_files() -> fmt.Checkpoint:
    whole = checkpoint()
    whole.partitions[0].merged.CopyFrom(fmt.MergedFiles(number=3, put_id=b"m" * 16, first=800))
    return whole


KINDS: list[tuple[str, ObjectKind, Message]] = [
    ("checkpoint-v1.bin", ObjectKind.CHECKPOINT, checkpoint()),
    ("checkpoint-facts-v1.bin", ObjectKind.CHECKPOINT, checkpoint_with_facts()),
    ("checkpoint-table-v1.bin", ObjectKind.CHECKPOINT, checkpoint_with_a_table()),
    ("checkpoint-ids-v1.bin", ObjectKind.CHECKPOINT, checkpoint_with_ids()),
    ("checkpoint-v2.bin", ObjectKind.CHECKPOINT, checkpoint_with_moves()),
    ("checkpoint-files-v2.bin", ObjectKind.CHECKPOINT, checkpoint_with_files_handed_over()),
    ("checkpoint-v3.bin", ObjectKind.CHECKPOINT, checkpoint_with_pins()),
    ("checkpoint-merged-v1.bin", ObjectKind.CHECKPOINT, checkpoint_with_merged_files()),
    ("merged-list-v1.bin", ObjectKind.MERGED_LIST, merged_list()),
    ("cut-v1.bin", ObjectKind.CUT, cut()),
    ("compaction-plan-v2.bin", ObjectKind.COMPACTION_PLAN, plan_that_hands_over()),
    ("compaction-plan-v3.bin", ObjectKind.COMPACTION_PLAN, plan_with_typed_values()),
    ("compaction-plan-v1.bin", ObjectKind.COMPACTION_PLAN, plan()),
    ("file-page-v1.bin", ObjectKind.FILE_PAGE, page()),
    ("snapshot-v1.bin", ObjectKind.SNAPSHOT, snapshot()),
]


@pytest.mark.parametrize(("name", "kind", "message"), KINDS)
def test_golden_files_are_readable_for_ever(name: str, kind: ObjectKind, message: Message) -> None:
    assert unseal(kind, type(message)(), (GOLDEN / name).read_bytes(), name, version_of(name)) == message


def version_of(name: str) -> int:
    return int(name[-5])


def test_a_checkpoint_with_moves_is_refused_by_releases_that_do_not_know_them() -> None:
    data = encode_checkpoint(checkpoint_with_moves())
    assert data == (GOLDEN / "checkpoint-v2.bin").read_bytes()
    assert encode_checkpoint(checkpoint()) == (GOLDEN / "checkpoint-v1.bin").read_bytes()
    with pytest.raises(FormatNotSupported, match="format version 2, this software reads version 1"):
        unseal(ObjectKind.CHECKPOINT, fmt.Checkpoint(), data, "checkpoint")


def test_a_checkpoint_with_pins_is_refused_by_releases_that_do_not_know_cuts() -> None:
    """They would delete what cuts need."""
    data = encode_checkpoint(checkpoint_with_pins())
    assert data == (GOLDEN / "checkpoint-v3.bin").read_bytes()
    with pytest.raises(FormatNotSupported, match="format version 3, this software reads version 2"):
        unseal(ObjectKind.CHECKPOINT, fmt.Checkpoint(), data, "checkpoint", MOVES_VERSION)


def test_golden_list_of_merged_files() -> None:
    data = (GOLDEN / "merged-list-v1.bin").read_bytes()
    assert decode_list(data, MergedName(keys.PartitionId(7, 1), 3, b"m" * 16).key) == merged_list()
    assert encode_list(merged_list()) == data


def test_golden_cut() -> None:
    assert decode_cut((GOLDEN / "cut-v1.bin").read_bytes(), names.cut(41)) == cut()
    assert seal(ObjectKind.CUT, cut()) == (GOLDEN / "cut-v1.bin").read_bytes()


def test_golden_record_of_a_cut() -> None:
    record = fmt.CutRecord.FromString((GOLDEN / "cut-record-v1.bin").read_bytes())
    assert record == fmt.CutRecord(
        id=41, name="eod", state=fmt.TAKEN, begun_ms=1, taken_ms=2, until_ms=3, nonce=b"n" * 16, holders=[b"h" * 16]
    )
    assert encode(record) == (GOLDEN / "cut-record-v1.bin").read_bytes()


def test_a_plan_that_hands_files_over_is_refused_by_releases_that_do_not_know_it() -> None:
    """They would commit it without the hand-over, and put a page without the files."""
    data = encode_plan(plan_that_hands_over())
    assert data == (GOLDEN / "compaction-plan-v2.bin").read_bytes()
    assert encode_plan(plan()) == (GOLDEN / "compaction-plan-v1.bin").read_bytes()
    with pytest.raises(FormatNotSupported, match="format version 2, this software reads version 1"):
        unseal(ObjectKind.COMPACTION_PLAN, fmt.CompactionPlan(), data, "plan")


def test_a_plan_with_typed_values_is_refused_by_releases_that_do_not_know_them() -> None:
    data = encode_plan(plan_with_typed_values())
    assert data == (GOLDEN / "compaction-plan-v3.bin").read_bytes()
    with pytest.raises(FormatNotSupported, match="format version 3, this software reads version 2"):
        unseal(ObjectKind.COMPACTION_PLAN, fmt.CompactionPlan(), data, "plan", HAND_OVER_VERSION)


@pytest.mark.parametrize("kind", [ObjectKind.FILE_PAGE, ObjectKind.SNAPSHOT])
def test_only_checkpoints_and_plans_have_version_2(kind: ObjectKind) -> None:
    with pytest.raises(FormatNotSupported):
        unseal(kind, fmt.Checkpoint(), seal(kind, plan(), MOVES_VERSION), "x")


def test_golden_topic_record() -> None:
    record = fmt.TopicRecord.FromString((GOLDEN / "topic-record-v1.bin").read_bytes())
    assert (record.name, list(record.bundles), dict(record.settings)) == ("t", [1, 2], {"retention.ms": "1000"})
    assert record.altered_ms == 0, "written before there was such a field"


def moved_topic() -> fmt.TopicRecord:
    moves = [
        fmt.PartitionMove(partition=0, move=7, source=2, before=5, ended=True),
        fmt.PartitionMove(partition=1, source=1),
    ]
    return fmt.TopicRecord(
        topic_id=4,
        name="t",
        bundles=[1, 2],
        settings={PARTITIONS_MOVED: "true"},
        created_ms=1,
        altered_ms=2,
        moves=moves,
    )


def test_golden_record_of_a_topic_with_moves() -> None:
    data = (GOLDEN / "topic-record-moves-v1.bin").read_bytes()
    assert moved_topic().SerializeToString(deterministic=True) == data
    topic = decode_topic_record(9, data)
    assert topic.moves == {0: PartitionMove(7, source=2, before=5, ended=True), 1: PartitionMove(9, source=1)}
    assert topic.bundles == (1, 2)


async def test_golden_cluster_file() -> None:
    store = MemoryStore("golden", seeded_sources())
    await store.put_if_absent(keys.CLUSTER, [(GOLDEN / "cluster-v1.json").read_bytes()])
    assert await read_cluster(store) == ClusterSettings(
        bundles=5,
        producer_states_max=1000,
        url_life_ms=5000,
        parquet_min_age_ms=20000,
        cluster_id="ab" * 16,
        created_ms=1,
    )


@pytest.mark.parametrize("change", [b'"format_version": 4', b'"format_version": 99'])
async def test_a_root_of_another_version_is_refused(change: bytes) -> None:
    store = MemoryStore("golden", seeded_sources())
    data = (GOLDEN / "cluster-v1.json").read_bytes().replace(b'"format_version": 1', change)
    await store.put_if_absent(keys.CLUSTER, [data])
    with pytest.raises(FormatNotSupported):
        await read_cluster(store)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"format": "ledgermq"}', b"\xff\xfe", b'{"format": "other"}', b"null"]
)
async def test_a_damaged_cluster_file_is_named(data: bytes) -> None:
    store = MemoryStore("golden", seeded_sources())
    await store.put_if_absent(keys.CLUSTER, [data])
    with pytest.raises(DataDamaged, match=r"cluster\.json"):
        await read_cluster(store)


@given(at=st.integers(min_value=0), value=st.integers(min_value=1, max_value=255))
def test_any_flipped_byte_is_found(at: int, value: int) -> None:
    whole = checkpoint()
    key = keys.checkpoint(whole.bundle, whole.number)
    data = bytearray(encode_checkpoint(whole))
    data[at % len(data)] ^= value
    with pytest.raises((DataDamaged, FormatNotSupported)) as caught:
        decode_checkpoint(bytes(data), key)
    assert caught.value.object_key == key


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(LedgerMQError):
        decode_snapshot(data, keys.snapshot(0, 3))


def test_an_object_under_another_key_is_refused() -> None:
    with pytest.raises(DataDamaged):
        decode_checkpoint(encode_checkpoint(checkpoint()), keys.checkpoint(2, 7))
    with pytest.raises(DataDamaged):
        decode_snapshot(encode_snapshot(snapshot()), keys.snapshot(1, 3))


def write_missing() -> None:
    record = fmt.TopicRecord(topic_id=4, name="t", bundles=[1, 2], settings={"retention.ms": "1000"}, created_ms=1)
    numbers = '"bundles": 5, "producer_states_max": 1000, "url_life_ms": 5000, "parquet_min_age_ms": 20000'
    cluster = (
        f'{{"format": "ledgermq", {numbers}, "cluster_id": "{"ab" * 16}", "format_version": 1, "created_ms": 1}}\n'
    ).encode()
    files = {name: seal(kind, message, version_of(name)) for name, kind, message in KINDS}
    fields = json.loads(cluster) | {"bundles": 3}
    with_checksum = json.dumps(fields | {CHECKSUM: checksum_of(fields)}).encode() + b"\n"
    files |= {"cluster-checksum-v1.json": with_checksum}
    files |= {"topic-record-v1.bin": record.SerializeToString(deterministic=True), "cluster-v1.json": cluster}
    files |= {"topic-record-moves-v1.bin": moved_topic().SerializeToString(deterministic=True)}
    for name, data in files.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(data)


if __name__ == "__main__":
    write_missing()
