"""Bugs in deleted topics that can be brought back (design D11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ledgermq_broker.metadata.controller as controller
from ledgermq_broker.metadata import topic_changes
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.log.chains import checkpoint as checkpoints
from ledgermq_ledger.topics import facts
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from tests.simulation.mutants import mutant
from tests.simulation.undelete_watch import clocks_jump, comes_too_late, outlives_its_records, regrets

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster", likely=regrets)
def collected_within_the_grace(patch: Patch) -> None:
    """A trashed topic counts as removed: its files go at once, though its record can be undone."""
    real = Catalog._keep_apart

    def keep_apart(self: Catalog, topic: Topic) -> None:
        real(self, topic)
        if topic.trash is not None:
            self.removed[topic.name] = topic

    patch.setattr(Catalog, "_keep_apart", keep_apart)
    patch.setattr(Gate, "why_kept", lambda self, key: "")


@mutant("cluster", likely=outlives_its_records)
def retention_of_a_trashed_topic(patch: Patch) -> None:
    """Retention goes on for a topic that can be brought back."""

    def may_remove(checkpoint: Any, topic: Topic, partition: int) -> bool:
        fact = facts.fact_of(checkpoint, topic.id)
        return checkpoints.is_in_charge(checkpoint, topic.id, partition) and (
            not topic.settings.legal_hold and (fact is None or (not fact.held and fact.version <= topic.version))
        )

    patch.setattr(facts, "_held", lambda topic: topic.settings.legal_hold)
    for module in ("retention", "expired_files", "cleaned_files"):
        patch.setattr(f"ledgermq_ledger.garbage.topics.{module}.may_remove", may_remove)


@mutant("cluster", likely=clocks_jump)
def grace_ended_by_our_clock_alone(patch: Patch) -> None:
    """The controller believes its machine's clock, which may have jumped."""

    async def end_graces(self: Any) -> None:
        for topic in list(self._metadata.catalog.trashed.values()):
            async with self._lock:
                owner = await self._ready()
                wish = topic_changes.grace_ended(self._metadata.catalog, topic.id, self._sources.now_ms())
                if wish is not None:
                    await self._append(owner, controller.topic_key(wish.name), controller.encode_topic_record(wish))

    patch.setattr(controller.Controller, "_end_graces", end_graces)


@mutant("cluster", likely=comes_too_late)
def undeleted_after_the_collection_began(patch: Patch) -> None:
    """A topic whose files already go is brought back."""
    real = topic_changes.undeleted

    def undeleted(catalog: Catalog, name: str, now_ms: int, nonce: bytes = b"", topic_id: int = 0) -> Topic:
        topic = catalog.topics_by_name.get(name)
        if topic is not None and topic.removed:
            return replace(topic, removed=False)
        return real(catalog, name, now_ms, nonce, topic_id)

    patch.setattr(controller, "undeleted", undeleted)
