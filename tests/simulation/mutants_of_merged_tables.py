"""Bugs in merged files of Delta tables (docs/design.md, Lake tables)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.versions import Draft, Listed, Topic
from tests.simulation.mutants import mutant
from tests.simulation.tables_plan import merges, merges_in_calm

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("tables", likely=merges_in_calm)
def log_start_within_a_merged_file(patch: Patch) -> None:
    """A version says the log start within a merged file that it names, and puts no small file back."""
    real_removal, real_exchange = versions._removal, versions._exchange

    def removal(table: Any, topic: Topic, lists: Mapping[int, Listed], named: Any, now_ms: int) -> Draft:
        below = {
            partition: [file for file in files if not file.is_merged or file.end <= lists[partition].log_start]
            for partition, files in named.items()
            if partition in lists
        }
        return real_removal(table, topic, lists, below, now_ms)

    def exchange(table: Any, topic: Topic, lists: Mapping[int, Listed], named: Any, now_ms: int) -> Draft:
        small = {partition: [file for file in files if not file.is_merged] for partition, files in named.items()}
        return real_exchange(table, topic, lists, small, now_ms)

    patch.setattr(versions, "_removal", removal)
    patch.setattr(versions, "_exchange", exchange)


@mutant("tables", likely=merges)
def merged_file_over_a_part_of_its_range(patch: Patch) -> None:
    """A merged file takes the place of the small files of its range that the table has, be they all or not."""

    def is_run(files: Sequence[Any], first: int, end: int) -> bool:
        return bool(files)

    patch.setattr(versions, "_is_run", is_run)
