"""Refuse records while too many slots of a ledger cannot be trimmed, and say what keeps them."""

from __future__ import annotations

from ledgermq.errors import ResourceExhausted
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.bundle.upkeep.compaction_due import first_staged_slot
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.partitions.moves import key_of
from ledgermq_ledger.parquet.hand_over import waits_for_files
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.view.view import LedgerView

_STAGED = {
    keys.STAGED_TOPIC: "batches of open transactions in them: commit or abort them",
    keys.DELAYED_TOPIC: "timed messages in them that are not delivered yet: retry later, and look into the log"
    " of this broker if that does not help",
}
"""What a staged topic holds, and what to do about it."""


def why_parked(view: LedgerView, catalog: Catalog) -> list[str]:
    """Return, for each parked partition, what stands in the way and what to do."""
    return [
        f"partition {_name(catalog, part.topic_id)}/{part.partition} of bundle {view.bundle} is parked, because"
        f" {part.parked.object_key} cannot be read: its records no longer become Parquet; `ledgermq repair ROOT"
        " --dry-run` shows what is damaged, and how to go on"
        for part in view.parked
    ]


def check_staged(view: LedgerView, catalog: Catalog, end: int, slots_max: int) -> None:
    """Raise ResourceExhausted if staged batches keep more than `slots_max` slots below `end` from being trimmed."""
    for topic in filter(None, map(catalog.topics_by_name.get, _STAGED)):
        for partition in topic.partitions_in(view.bundle) if topic.staged else ():
            first = first_staged_slot(view, PartitionId(topic.id, partition), topic)
            if first is not None and end - first > slots_max:
                raise ResourceExhausted(
                    f"bundle {view.bundle}: {end - first} segments cannot be trimmed, because"
                    f" {topic.name}/{partition} holds {_STAGED[topic.name]}",
                    retry_after_ms=30_000,
                )


def check_parked(view: LedgerView, context: BundleContext, durable: LedgerState) -> None:
    """Raise ResourceExhausted if a parked partition has kept too many slots from being trimmed."""
    untrimmed = durable.slot + 1 - view.checkpoint.trim_slot
    if untrimmed <= context.limits.parked_slots_max:
        return
    catalog = context.catalog()
    for opened in durable.moves.opens():
        if waits_for_files(durable.moves, key_of(opened), view.counters.get(key_of(opened))):
            raise ResourceExhausted(
                f"bundle {view.bundle}: {untrimmed} segments cannot be trimmed, because the files of"
                f" {_name(catalog, opened.topic_id)}/{opened.partition} are still in bundle {opened.source}"
                f" (move {opened.move}). Compact it: `ledgermq compact ROOT`; `ledgermq fsck ROOT` names what"
                " stops it",
                retry_after_ms=30_000,
            )
    if not view.parked:
        return
    named = ", ".join(
        f"{_name(catalog, part.topic_id)}/{part.partition} ({part.parked.object_key})" for part in view.parked[:3]
    )
    raise ResourceExhausted(
        f"bundle {view.bundle}: {untrimmed} segments cannot be trimmed, because {len(view.parked)} partitions are"
        f" parked: {named}; repair them",
        retry_after_ms=30_000,
    )


def _name(catalog: Catalog, topic_id: int) -> str:
    topic = catalog.topics_by_id.get(topic_id)
    return topic.name if topic is not None else f"topic {topic_id}"
