"""What members were given and told, against the invariants of queues."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.models.shares.owner import DELIVERIES_MAX, Grant, Number

if TYPE_CHECKING:
    from tests.models.shares.owner import World


class Judge:
    """What members were told and did counts for the reset before it, their generation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.firsts: dict[int, int] = {}
        """generation -> the first offset that the group is to read"""
        self.acknowledged: dict[tuple[int, int], int] = {}
        """(generation, offset) -> moment at which a member was told so"""
        self._counted: dict[tuple[int, int], Number] = {}
        """(generation, offset) -> the lease whose member was told so"""
        self.tried: set[tuple[int, int]] = set()
        """(generation, offset) that a member accepted or rejected under a lease"""
        self.deliveries: Counter[tuple[int, int]] = Counter()
        self._leases: dict[tuple[object, int], Grant] = {}

    def granted(self, grants: list[Grant]) -> None:
        now = self._world.now
        for grant in grants:
            held = self._leases.get((grant.life, grant.offset))
            if held is not None and held.until > now:
                self._world.check(False, f"{grant.offset} is leased twice, until {held.until}, at {now}")
            self._leases[grant.life, grant.offset] = grant

    def renewed(self, grant: Grant, until: int) -> None:
        held = self._leases.get((grant.life, grant.offset))
        if held is not None and held.number == grant.number:
            self._leases[grant.life, grant.offset] = replace(held, until=until)

    def let_go(self, grant: Grant) -> None:
        """A member sends its last word about a message."""
        held = self._leases.get((grant.life, grant.offset))
        if held is not None and held.number == grant.number:
            del self._leases[grant.life, grant.offset]

    def delivered(self, grants: list[Grant]) -> None:
        """A member is given messages."""
        for grant in grants:
            place = grant.generation, grant.offset
            self.firsts.setdefault(grant.generation, grant.begun)
            told = self.acknowledged.get(place)
            self._world.check(
                told is None or grant.moment <= told,
                f"{grant.offset} was acknowledged at {told} and given again at {grant.moment}",
            )
            if grant.count <= DELIVERIES_MAX:
                self.deliveries[place] += 1
                limit = DELIVERIES_MAX + self._world.lost[place] + self._world.drops
                self._world.check(
                    self.deliveries[place] <= limit,
                    f"{grant.offset} came {self.deliveries[place]} times, at most {limit} are right",
                )

    def told(self, grant: Grant) -> None:
        """A member is told that its acknowledgement counts."""
        counted = self._counted.setdefault((grant.generation, grant.offset), grant.number)
        self._world.check(
            counted == grant.number, f"{grant.offset} was finished by the leases {counted} and {grant.number}"
        )
        self.acknowledged[grant.generation, grant.offset] = self._world.now

    def reset(self, generation: int, to: int) -> None:
        self.firsts[generation] = to

    def check_rest(self) -> None:
        owner = self._world.current
        held, end, generation = owner.held, owner.state.end, owner.state.generation
        self._world.check(held.start == end, f"at rest the start is {held.start}, the end {end}")
        first = max(self.firsts.get(generation, end), owner.state.log_start)
        lost = [offset for offset in range(first, end) if (generation, offset) not in self.tried]
        self._world.check(not lost, f"nobody worked on {lost}")
