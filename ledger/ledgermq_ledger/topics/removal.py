"""Remove a topic from one bundle, as moves of checkpoints (design D4).

    named      the checkpoint takes in the fact: from now on no plan is made that writes a file of the topic
    barrier    the first plan after that is finished: no plan from before it is open any more, its late puts are refused
    deleted    the topic's Parquet files are gone, in ascending order, and a LIST has confirmed it
    forgotten  every bundle is that far and the name is free: `__metadata` holds a tombstone, the
               checkpoint drops the note

The end offsets of a removed topic stay in the fold: an owner that has not seen the removal may
still append to it, and its offsets have to stay dense. No plan writes these records. This module
only makes the moves; `ledgermq_ledger.garbage.topics.removed` applies them.
"""

from __future__ import annotations

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import Move, replace_partitions
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import facts_in
from ledgermq_ledger.topics.topic import Topic


def note_of(checkpoint: fmt.Checkpoint, topic_id: int) -> fmt.RemovedTopic | None:
    return next((note for note in checkpoint.removed_topics if note.topic_id == topic_id), None)


def removed_in(catalog: Catalog, bundle: int) -> list[Topic]:
    """Return removed topics whose names are not free yet and that have partitions in the bundle."""
    return [topic for topic in catalog.removed.values() if bundle in topic.bundles]


def take_in_facts(catalog: Catalog) -> Move:
    """Return the move that applies the facts of `__metadata` below the catalog's offset: settings,
    removed topics, free names. It declines if nothing changes.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        if catalog.offset < draft.metadata_offset:
            return False
        named = {note.topic_id for note in draft.removed_topics}
        new = [topic for topic in removed_in(catalog, draft.bundle) if topic.id not in named]
        kept = [
            note
            for note in draft.removed_topics
            if not (note.files_deleted and note.topic_id not in catalog.topics_by_id)
        ]
        facts = facts_in(catalog, draft.bundle)
        if not new and len(kept) == len(draft.removed_topics) and facts == list(draft.topic_facts):
            return False
        new_notes = [fmt.RemovedTopic(topic_id=t.id, topic=t.name, named_at_plan=draft.finished_plan) for t in new]
        del draft.removed_topics[:]
        draft.removed_topics.extend(sorted([*kept, *new_notes], key=lambda note: note.topic_id))
        del draft.topic_facts[:]
        draft.topic_facts.extend(facts)
        draft.metadata_offset = catalog.offset
        return True

    return move


def is_past_barrier(checkpoint: fmt.Checkpoint, topic_id: int) -> bool:
    note = note_of(checkpoint, topic_id)
    return note is not None and checkpoint.finished_plan > note.named_at_plan


def note_barrier(topic_id: int, store_time_ms: int) -> Move:
    """Return the move that notes when, by the store's clock, the barrier was seen to be passed: the
    age of late puts counts from there.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        note = note_of(draft, topic_id)
        if note is None or note.barrier_ms or not is_past_barrier(draft, topic_id):
            return False
        note.barrier_ms = store_time_ms
        return True

    return move


def confirm_deleted(topic_id: int) -> Move:
    """Return the move that notes that the topic's files are gone from this bundle's partitions."""

    def move(draft: fmt.Checkpoint) -> bool:
        note = note_of(draft, topic_id)
        if note is None or note.files_deleted or not note.barrier_ms:
            return False
        note.files_deleted = True
        replace_partitions(draft, [part for part in draft.partitions if part.topic_id != topic_id])
        return True

    return move
