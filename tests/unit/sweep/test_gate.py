"""The one place that is asked whether an object may be deleted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import ledgermq_ledger.garbage
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.pinned import Pinned
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import genesis
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.removal import take_in_facts
from ledgermq_ledger.topics.topic import Topic, Trash, encode_topic_record, removed, topic_key

FILES = [keys.ParquetName("t", 0, first, first + 9, 5, 1).key for first in (0, 10, 20)]


def catalog_with(topic: Topic) -> Catalog:
    catalog = Catalog()
    catalog.apply(5, topic_key(topic.name), encode_topic_record(topic))
    return catalog


TOPIC = Topic(5, "t", (1,))
TRASHED = replace(TOPIC, trash=Trash(50, 1000))


def test_every_deletion_of_the_package_goes_through_the_gate() -> None:
    folder = Path(ledgermq_ledger.garbage.__file__).parent
    found = {
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"[sS]tore\)?\.delete\(", path.read_text(encoding="utf-8"))
    }
    assert found == {"gate.py"}


@pytest.mark.parametrize("key", [FILES[0], keys.keyed_version(PartitionId(5, 0), 1)])
def test_objects_of_a_topic_that_can_be_brought_back_stay(key: str) -> None:
    checkpoint = genesis(1)
    assert Gate(catalog_with(TOPIC), checkpoint).why_kept(key) == ""
    assert "can be brought back" in Gate(catalog_with(TRASHED), pinned=Pinned()).why_kept(key)
    assert Gate(checkpoint=checkpoint).why_kept(key) == ""
    take_in_facts(catalog_with(TRASHED))(checkpoint)
    assert "is held" in Gate(checkpoint=checkpoint).why_kept(key)
    with pytest.raises(AssertionError, match="only a checkpoint says whether a cut names it"):
        Gate(catalog_with(TOPIC)).why_kept(key)


async def test_a_deletion_ends_at_the_first_object_that_stays() -> None:
    store = MemoryStore(Sources())
    others = [keys.segment(1, 3), keys.segment(1, 4)]
    for key in (*FILES, *others):
        await store.put(key, b"x")
    assert (
        await Gate(catalog_with(TRASHED), pinned=Pinned()).delete(store, [others[0], FILES[0], others[1]]) == others[:1]
    )
    assert [info.key async for info in store.list("")] == sorted([*FILES, others[1]])
    assert await Gate(catalog_with(removed(TOPIC)), pinned=Pinned()).delete(store, FILES) == FILES


def test_files_that_a_table_may_name_stay() -> None:
    checkpoint = genesis(1)
    gate = Gate(catalog_with(TOPIC), checkpoint)
    checkpoint.topic_facts.add(topic_id=5, table=3)
    assert [bool(gate.why_kept(key)) for key in FILES] == [True] * 3, "no version has said a start yet"
    checkpoint.partitions.add(topic_id=5, partition=0, table_start=19)
    assert [bool(gate.why_kept(key)) for key in FILES] == [False, True, True]
    checkpoint.partitions[0].table_start = 20
    assert [bool(gate.why_kept(key)) for key in FILES] == [False, False, True]
    checkpoint.partitions[0].parquet_start = 20
    unlisted = Gate(checkpoint=checkpoint, was_listed=False)
    assert unlisted.why_kept(FILES[2]) == "", "no list ever had it, so no table has"
    checkpoint.partitions[0].parquet_start = 21
    assert unlisted.why_kept(FILES[2])
    assert Gate(catalog_with(removed(TOPIC)), checkpoint).why_kept(FILES[2]) == ""
    with pytest.raises(AssertionError, match="only a checkpoint"):
        Gate(catalog_with(TOPIC)).why_kept(FILES[2])
    del checkpoint.topic_facts[:]
    assert gate.why_kept(FILES[2]) == "", "it has no table"
