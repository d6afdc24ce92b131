"""The partitions of one topic that records without a key prefer, and those that they avoid.

They prefer partitions whose owners are in the rack of the program, because most clouds charge for what crosses
racks. They avoid partitions whose owners store nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ledgermq.client.connection.routing import Routing
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.settings.partitioner import Preferred
from ledgermq.protocol.levels import partition_at, partitions_in, places_of

SILENCE_LOOK_S = 0.1
"""How often partitions are looked through for owners that store nothing, while there are some."""

NEAR_OF_SHARE_MIN = 0.5
"""Partitions in the rack are preferred if they are at least this part of what a rack has on the average. Fewer would
get a multiple of what the others get.
"""


def near(rack: str, racks: Sequence[str]) -> list[int]:
    """Return the places whose owners are in `rack`, in ascending order; none if they are too few. `racks`: of the
    owner of each place, "" if it is not known.
    """
    found = [place for place, each in enumerate(racks) if rack and each == rack]
    return found if len(found) * len({*racks} - {""}) >= NEAR_OF_SHARE_MIN * len(racks) else []


class Choices:
    """`queues`: of all partitions of a topic, a list that grows with it. `availability_timeout_s`: how long an owner
    may store nothing.
    """

    def __init__(self, queues: Sequence[PartitionQueue], routing: Routing, availability_timeout_s: float) -> None:
        self._queues = queues
        self._routing = routing
        self._timeout_s = availability_timeout_s
        self._clock_s = asyncio.get_running_loop().time
        self.are_free = not routing.rack
        """Whether no partition is preferred or avoided."""
        self._avoided: AbstractSet[int] = frozenset()
        """As of `_avoided_s`."""
        self._avoided_s: float | None = None
        """None: there are none."""
        self._preferred: dict[int, Preferred | None] = {}
        """By level, as of `_known`."""
        self._known: tuple[int, int, int, AbstractSet[int]] | None = None

    def avoid(self) -> None:
        """Look for owners that store nothing: there is one."""
        self.are_free = False
        if self._avoided_s is None:
            self._avoided_s = float("-inf")

    def avoided(self, level: int, levels: int) -> AbstractSet[int]:
        """Return the places of a level whose owners have stored nothing for a while."""
        return frozenset() if self._avoided_s is None else places_of(self._silent(), level, levels)

    def preferred(self, level: int, levels: int) -> Preferred | None:
        """Return the places of a level whose owners are in the rack of the program, without those to avoid; None if
        there are none.
        """
        if not self._routing.rack:
            return None
        silent = frozenset() if self._avoided_s is None else self._silent()
        known = self._routing.changes, len(self._queues), levels, silent
        if known != self._known:
            self._known, self._preferred = known, {}
        if level not in self._preferred:
            self._preferred[level] = self._find(level, levels, places_of(silent, level, levels))
        return self._preferred[level]

    def _find(self, level: int, levels: int, avoided: AbstractSet[int]) -> Preferred | None:
        count = partitions_in(level, levels, len(self._queues))
        queues = [self._queues[partition_at(place, level, levels)] for place in range(count)]
        racks = [self._routing.rack_of(*queue.at) for queue in queues]
        places = [place for place in near(self._routing.rack, racks) if place not in avoided]
        return Preferred(places, lambda place: queues[place].is_full) if places else None

    def _silent(self) -> AbstractSet[int]:
        """Return the partitions whose owners have stored nothing for a while. An owner is judged by each of its
        partitions that has waiting records: another one counts as silent, too, unless it stored some meanwhile.
        """
        now_s = self._clock_s()
        if self._avoided_s is None or now_s - self._avoided_s < SILENCE_LOOK_S:
            return self._avoided
        limit_s = now_s - self._timeout_s
        silent: dict[int, float] = {}
        owners: dict[str, float] = {}
        for number, queue in enumerate(self._queues):
            since_s = queue.look(now_s)
            if since_s is not None and since_s <= limit_s:
                silent[number] = since_s
                if (owner := self._routing.owner(*queue.at)) is not None:
                    owners[owner] = max(since_s, owners.get(owner, since_s))
        siblings = {
            number
            for number, queue in enumerate(self._queues)
            if queue.stored_s < owners.get(self._routing.owner(*queue.at) or "", float("-inf"))
        }
        self._avoided, self._avoided_s = silent.keys() | siblings, now_s if silent else None
        self.are_free = not (silent or self._routing.rack)
        return self._avoided
