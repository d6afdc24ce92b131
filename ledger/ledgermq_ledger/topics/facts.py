"""Record in a bundle's checkpoint the topic settings that protect records: legal holds, and the
version of the settings in force.

Owners, compactors and commands remove records, each with a catalog that it read some time ago. A
setting has to count from the moment at which its change was answered. So the change is answered
only when the newest checkpoint of every bundle of the topic names it. A process that moves a log
start or deletes a file reads that checkpoint; with an older version of the topic it removes nothing
(design D1; docs/decisions/0025). A topic that is deleted and can be brought back counts as held, so no
process removes anything of it, of whatever release it is (design D11). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import LegalHold, Unavailable
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import is_in_charge, partition_of
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic

PROTECTING = frozenset(
    (
        "legal.hold",
        "retention.ms",
        "retention.bytes",
        "cleanup.policy",
        "delete.action",
        "delete.when",
        "delete.when.timezone",
        "archive.url",
        "table.keep.ms",
        "table.format",
    )
)

ABOVE_ALL_VERSIONS = 2**63


def fact_of(checkpoint: fmt.Checkpoint, topic_id: int) -> fmt.TopicFact | None:
    return next((fact for fact in checkpoint.topic_facts if fact.topic_id == topic_id), None)


def is_held(checkpoint: fmt.Checkpoint, topic_id: int) -> bool:
    fact = fact_of(checkpoint, topic_id)
    return fact is not None and fact.held


def has_table(checkpoint: fmt.Checkpoint, topic_id: int) -> bool:
    """Return True if the topic has a table over the files of its log, so that they stay while a version of the table
    may name them (design Z6).
    """
    fact = fact_of(checkpoint, topic_id)
    return fact is not None and fact.table != 0 and not fact.table_of_versions


def versions_kept_from(checkpoint: fmt.Checkpoint, topic_id: int, partition: int) -> int:
    """Return the number from which on the versions of a keyed partition stay, because a table may show them (design
    V5); above all numbers if there is no such table.
    """
    fact = fact_of(checkpoint, topic_id)
    if fact is None or not fact.table or not fact.table_of_versions:
        return ABOVE_ALL_VERSIONS
    return partition_of(checkpoint, topic_id, partition).table_version


def may_remove(checkpoint: fmt.Checkpoint, topic: Topic, partition: int) -> bool:
    """Return True if records of a partition may be removed by these settings: its topic is living and not held,
    it is not between two bundles, and the settings were not replaced.
    """
    fact = fact_of(checkpoint, topic.id)
    if not is_in_charge(checkpoint, topic.id, partition):
        return False
    if not topic.living or topic.settings.legal_hold:
        return False
    return fact is None or (not fact.held and fact.version <= topic.version)


def refuse_held(checkpoint: fmt.Checkpoint, topic: Topic) -> None:
    """Raise LegalHold if the topic is held."""
    if topic.settings.legal_hold or is_held(checkpoint, topic.id):
        raise LegalHold(
            f"topic {topic.name!r} is under legal hold: none of its records can be deleted until legal.hold is set to"
            " false"
        )


def refuse_moving(checkpoint: fmt.Checkpoint, topic: Topic, partitions: Iterable[int]) -> None:
    """Raise Unavailable if one of the partitions is between two bundles."""
    for partition in partitions:
        if not is_in_charge(checkpoint, topic.id, partition):
            raise Unavailable(
                f"{topic.name}/{partition} moves between bundles at the moment: its records can be deleted when its"
                " files belong to the new one; retry later",
                retry_after_ms=5000,
            )


def concern_protection(settings: Iterable[str]) -> bool:
    """Return True if one of these settings decides which records are removed or kept."""
    return not PROTECTING.isdisjoint(settings)


def facts_in(catalog: Catalog, bundle: int) -> list[fmt.TopicFact]:
    """Return the facts of the bundle's live and trashed topics, ascending by id. A trashed one is held.

    Topics whose settings never changed, and that have no table, are omitted: a process without facts for a topic
    never removes its records.
    """
    topics = sorted([*catalog.living_topics(), *catalog.trashed.values()], key=lambda topic: topic.id)
    return [
        fmt.TopicFact(
            topic_id=topic.id,
            version=topic.version,
            held=_held(topic),
            table=topic.settings.table_generation,
            table_of_versions=bool(topic.settings.table_generation and topic.settings.keyed),
        )
        for topic in topics
        if bundle in topic.bundles_in_use
        and not topic.internal
        and (topic.version != topic.id or _held(topic) or topic.settings.table_generation)
    ]


def _held(topic: Topic) -> bool:
    return topic.settings.legal_hold or topic.trash is not None
