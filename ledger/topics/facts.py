"""What a bundle's checkpoint knows of topics' settings that protect records: legal holds, and which
version of the settings is in force.

Records are removed by many: owners, compactors, commands; each with the catalog that it read some
time ago. So that a setting counts from the moment at which its change was answered, the change is
answered only when the newest checkpoint of every bundle of the topic names it, and whoever moves a
log start or deletes a file asks that checkpoint: with an older version of the topic it removes
nothing (design D1; docs/decisions/0025). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.topics.catalog import Catalog, Topic
from ledgermq.errors import LegalHold

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
    )
)


def fact_of(checkpoint: fmt.Checkpoint, topic_id: int) -> fmt.TopicFact | None:
    return next((fact for fact in checkpoint.topic_facts if fact.topic_id == topic_id), None)


def is_held(checkpoint: fmt.Checkpoint, topic_id: int) -> bool:
    fact = fact_of(checkpoint, topic_id)
    return fact is not None and fact.held


def may_remove(checkpoint: fmt.Checkpoint, topic: Topic) -> bool:
    """May records of the topic be removed by these settings of it? Not while it is held, nor by
    settings that were replaced.
    """
    fact = fact_of(checkpoint, topic.id)
    return not topic.settings.legal_hold and (fact is None or (not fact.held and fact.version <= topic.version))


def refuse_held(checkpoint: fmt.Checkpoint, topic: Topic) -> None:
    """Raises LegalHold."""
    if topic.settings.legal_hold or is_held(checkpoint, topic.id):
        raise LegalHold(
            f"topic {topic.name!r} is under legal hold: none of its records can be deleted until legal.hold is set to false"
        )


def concern_protection(settings: Iterable[str]) -> bool:
    """Is one of these names of a setting that says which records are removed or kept?"""
    return not PROTECTING.isdisjoint(settings)


def facts_in(catalog: Catalog, bundle: int) -> list[fmt.TopicFact]:
    """Of the living topics of a bundle, ascending.

    One that is as it was created needs none: who does not know it removes nothing of it.
    """
    topics = sorted(catalog.living_topics(), key=lambda topic: topic.id)
    return [
        fmt.TopicFact(topic_id=topic.id, version=topic.version, held=topic.settings.legal_hold)
        for topic in topics
        if bundle in topic.bundles and not topic.internal and (topic.version != topic.id or topic.settings.legal_hold)
    ]
