"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence

from ledgermq.client.groups.admin.descriptions import GroupDescription, GroupLag, GroupSummary
from ledgermq.client.groups.admin.group_admin import GroupAdmin as AsyncGroupAdmin
from ledgermq.client.groups.admin.resets import PlannedReset, Where
from ledgermq.client.groups.lag import Lag
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq.sync.background import Background


class GroupAdmin:
    """Administration of consumer groups, as `client.groups`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncGroupAdmin) -> None:
        self._background = background
        self._inner = inner

    def list(self) -> list[GroupSummary]:
        """Return all groups of the cluster, by name.

        Raises Unavailable when a coordinator cannot be reached.
        """
        return self._background.run(self._inner.list())

    def describe(self, group: str) -> GroupDescription:
        """Return a group's members and committed offsets. Raises InvalidGroupName, UnknownGroup,
        Unavailable.
        """
        return self._background.run(self._inner.describe(group))

    def lags(self, *, topic: str = "", group: str = "", after: str = "", limit: int = 0) -> builtins.list[GroupLag]:
        """Return how far all groups are behind, by group and topic.

        That is one call of each broker, however many groups there are. Coordinators answer by what they have seen a
        second ago, or ten times as long ago as a look takes. Of each broker 10,000 partitions count.

        `topic`, `group`: only these. `limit`: a page of so many groups, 0 for all; `after`: the group with which the
        page before ended. Raises Unavailable while a broker does not answer, and InvalidRequest if a broker of an
        earlier release runs, which it names.
        """
        return self._background.run(self._inner.lags(topic=topic, group=group, after=after, limit=limit))

    def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """Return the lag of every partition that has a committed offset, unless its topic was
        deleted since.
        """
        return self._background.run(self._inner.lag(group))

    def lag_of(self, described: GroupDescription) -> dict[TopicPartition, Lag]:
        """Return the lag of a group that was described before."""
        return self._background.run(self._inner.lag_of(described))

    def plan_reset(
        self, group: str, where: Where, topics: Iterable[str] = (), partitions: Iterable[TopicPartition] = ()
    ) -> Sequence[PlannedReset]:
        """Return what `reset` would change, without changing it.

        `where`: see `ledgermq.client.groups.admin.resets`. Without `topics` and `partitions`, it
        applies to all partitions for which the group has committed offsets. Raises InvalidConfig,
        OffsetOutOfRange, UnknownTopic, UnknownGroup (if no topic or partition is given),
        Unavailable, InvalidRequest (no partition to reset).
        """
        return self._background.run(self._inner.plan_reset(group, where, topics, partitions))

    def reset(self, group: str, planned: Sequence[PlannedReset]) -> Mapping[TopicPartition, LedgerMQError]:
        """Set committed offsets as planned. Running members continue from the new offsets. A
        partition in which a transaction is open is retried, until the client's `timeout_s`.

        Return an error for each partition that failed; raises Unavailable, …
        """
        return self._background.run(self._inner.reset(group, planned))

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, tuple[int, int]]
    ) -> Mapping[TopicPartition, LedgerMQError]:
        """Commit the progress of a job that is not a member of any group; `describe` shows it.
        `offsets`: (topic id, next offset to read) by partition.

        Return an error for each partition that was refused: CommitGoesBack, OffsetOutOfRange, UnknownTopic, …;
        StaleAssignment if another program commits for the group at the same time (commit again: the highest
        offset stays). Raises InvalidGroupName, GroupNotEmpty (only members may commit),
        Unavailable.
        """
        return self._background.run(self._inner.commit(group, offsets))

    def delete(self, group: str) -> None:
        """Delete a group with all its committed offsets. Raises UnknownGroup, GroupNotEmpty,
        Unavailable.

        UnknownGroup also means: an attempt had no answer, and before the next one another program had begun a group
        of this name, or had used this one. That group stays as it is.
        """
        self._background.run(self._inner.delete(group))
