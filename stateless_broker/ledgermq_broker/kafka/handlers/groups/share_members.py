"""Members of share groups that one broker coordinates, in memory: what tools show, and what each was given.

Every member is given all partitions of its topics: which message goes to whom is decided by the leases of each
partition's owner. So nothing depends on what is kept here. A broker that becomes the coordinator knows a member again
from its first heartbeat, which says everything, as clients do after an error. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledgermq.protocol.api import BrokerApi
from ledgermq.runtime.ports.shares import is_above_share

INTERVAL_MS = 5_000
"""Between two heartbeats."""
SESSION_S = 45.0
"""A member that is silent for so long is no longer shown."""
PLACES_MAX = 100_000
"""Members, and the topics that they name, of all groups. The members of one host may have as many as are free."""
INT32_MAX = 2**31 - 1

Assignment = tuple[tuple[bytes, str, int], ...]
"""Topics, each with its id, its name and the number of its partitions."""


@dataclass(slots=True)
class Member:
    """`epoch`: grows when it is given something else. `assigned`: None, nothing yet. `looked`: with whose API, and at
    which offset of the catalog, it was found.
    """

    group: str
    id: str
    client_id: str
    client_host: str
    rack: str | None = None
    topics: tuple[str, ...] = ()
    epoch: int = 0
    assigned: Assignment | None = None
    seen_s: float = 0.0
    looked: tuple[BrokerApi, int] | None = None

    @property
    def places(self) -> int:
        return 1 + len(self.topics)

    def give(self, assigned: Assignment, said: int, *, says_all: bool) -> bool:
        """Give it these topics. `said`: the epoch that it names. Return whether it has to hear of them."""
        is_news = assigned != self.assigned or said != self.epoch or says_all
        if assigned != self.assigned or self.epoch == 0:
            self.epoch = max(self.epoch, said, 0) + 1
        elif said > self.epoch:  # of a coordinator before this one
            self.epoch = said
        if self.epoch > INT32_MAX:
            self.epoch = 1
        self.assigned = assigned
        return is_news


class TooManyMembers(Exception):
    pass


class ShareMembers:
    """Of one broker. Times are those of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Member]] = {}
        self._places = 0
        self._swept_s = 0.0

    def find(self, group: str, member_id: str) -> Member | None:
        return self._groups.get(group, {}).get(member_id)

    def keep(self, member: Member, now_s: float) -> None:
        """Take a member, in the place of one with its id. Raises TooManyMembers."""
        self._sweep(now_s)
        self.remove(member.group, member.id)
        own = sum(one.places for one in self._all() if one.client_host == member.client_host)
        if is_above_share(own, member.places, PLACES_MAX - self._places):
            raise TooManyMembers(f"members of share groups name at most {PLACES_MAX} topics together at one broker")
        self._groups.setdefault(member.group, {})[member.id] = member
        self._places += member.places
        member.seen_s = now_s

    def remove(self, group: str, member_id: str) -> None:
        of_group = self._groups.get(group, {})
        found = of_group.pop(member_id, None)
        if found is not None:
            self._places -= found.places
        if not of_group:
            self._groups.pop(group, None)

    def members(self, group: str, now_s: float) -> list[Member]:
        """Return the members of a group, sorted by their ids."""
        self._sweep(now_s)
        return [member for _, member in sorted(self._groups.get(group, {}).items())]

    def groups(self, now_s: float) -> list[str]:
        """Return the groups that have members, sorted."""
        self._sweep(now_s)
        return sorted(self._groups)

    def _all(self) -> Iterator[Member]:
        for members in self._groups.values():
            yield from members.values()

    def _sweep(self, now_s: float) -> None:
        """Forget those that are silent."""
        for member in [one for one in self._all() if one.seen_s + SESSION_S < now_s]:
            self.remove(member.group, member.id)
