"""Bugs of bundles that are added to a running cluster (docs/design.md, chapter 20)."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.metadata import controller, topic_changes
from ledgermq_broker.metadata.controller import Controller
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.fsck import check as fsck_check
from ledgermq_ledger.rounds import runner
from tests.simulation.cluster_plan import added_bundles_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def _grows(seed: int) -> bool:
    return added_bundles_of(seed) > 0


@mutant("cluster", likely=_grows)
def controller_places_by_the_first_number(patch: Patch) -> None:
    """The controller places partitions by the number of bundles that it read when it started."""
    patch.setattr(Controller, "_bundles", lambda self: self._cluster.bundles)


@mutant("cluster", likely=_grows, hangs=True)
def brokers_keep_the_first_number(patch: Patch) -> None:
    """Brokers do not take in bundles that were added after their start."""
    patch.setattr(Directory, "grow", lambda self, bundles: False)


@mutant("cluster", likely=_grows)
def compaction_by_the_first_number(patch: Patch) -> None:
    """Compaction and collection of garbage go by the number in `cluster.json`."""
    patch.setattr(runner, "grown", lambda cluster, catalog: cluster)


@mutant("cluster", likely=_grows)
def checks_by_the_first_number(patch: Patch) -> None:
    """A pass over the root does not read the number of bundles again."""

    async def same(store: Any, cluster: ClusterSettings) -> ClusterSettings:
        return cluster

    patch.setattr(fsck_check, "reread_bundles", same)


@mutant("cluster", likely=_grows)
def the_last_wish_counts(patch: Patch) -> None:
    """A wish for fewer bundles than there are is granted."""
    real = topic_changes.with_more_bundles
    patch.setattr(
        controller,
        "with_more_bundles",
        lambda catalog, before, bundles, *rest: real(catalog, min(before, bundles - 1), bundles, *rest),
    )


@mutant("cluster", likely=_grows)
def bundles_added_before_earlier_releases_refuse(patch: Patch) -> None:
    """The number grows while `cluster.json` has the version that earlier releases read."""

    async def nothing(store: Any, cluster: ClusterSettings) -> None:
        pass

    patch.setattr(controller, "mark_grown", nothing)


@mutant("transactions", likely=_grows)
def added_bundles_without_partitions_of_the_system(patch: Patch) -> None:
    """The number grows, and the topics of the system do not."""
    real = topic_changes.with_more_bundles
    patch.setattr(
        controller,
        "with_more_bundles",
        lambda *arguments: real(*arguments)[:1],
    )
