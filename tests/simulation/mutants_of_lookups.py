"""Bugs in look-ups of messages by key and id."""

from __future__ import annotations

import pytest

from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view import find
from ledgermq_ledger.view.find import Finder, FoundRecord, SearchResult
from tests.simulation.lookup_watch import looks_up
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster", looks_up)
def look_up_goes_past_a_neighbour(patch: Patch) -> None:
    """A search goes on one offset behind what it has searched."""
    real = find._go_past

    def go_past(left: SearchResult, first: int, end: int, *, upwards: bool) -> None:
        real(left, first - 1, end + 1, upwards=upwards)

    patch.setattr(find, "_go_past", go_past)


@mutant("cluster", looks_up)
def look_up_by_id_takes_the_next_one(patch: Patch) -> None:
    """Where the record with an offset is not the last one, the one behind it is found."""
    real = Finder.record

    async def record(self: Finder, place: PartitionId, offset: int, topic: Topic) -> FoundRecord | None:
        return await real(self, place, min(offset + 1, self._view.readable_end(place) - 1), topic)

    patch.setattr(Finder, "record", record)
