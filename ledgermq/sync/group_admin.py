"""Administration of consumer groups without asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.admin.descriptions import GroupDescription, GroupSummary
from ledgermq.client.groups.admin.group_admin import GroupAdmin as AsyncGroupAdmin
from ledgermq.client.groups.admin.resets import PlannedReset, Where
from ledgermq.client.groups.lag import Lag
from ledgermq.errors import LedgerMQError
from ledgermq.sync.background import Background


class GroupAdmin:
    """`client.groups`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncGroupAdmin) -> None:
        self._background = background
        self._inner = inner

    def list(self) -> list[GroupSummary]:
        """All groups of the cluster, by name.

        Raises Unavailable when a coordinator cannot be reached.
        """
        return self._background.run(self._inner.list())

    def describe(self, group: str) -> GroupDescription:
        """Members, and what was committed. Raises InvalidGroupName, UnknownGroup, Unavailable."""
        return self._background.run(self._inner.describe(group))

    def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """The lag of every partition that has a committed offset and whose topic is still the one
        that was read.
        """
        return self._background.run(self._inner.lag(group))

    def lag_of(self, described: GroupDescription) -> dict[TopicPartition, Lag]:
        """The same, of a description that is at hand."""
        return self._background.run(self._inner.lag_of(described))

    def plan_reset(
        self, group: str, where: Where, topics: Iterable[str] = (), partitions: Iterable[TopicPartition] = ()
    ) -> Sequence[PlannedReset]:
        """Return what `reset` would do; change nothing.

        Arguments and errors are those of the asyncio client's `plan_reset`.
        """
        return self._background.run(self._inner.plan_reset(group, where, topics, partitions))

    def reset(self, group: str, planned: Sequence[PlannedReset]) -> Mapping[TopicPartition, LedgerMQError]:
        """Move committed offsets; members that run go on from the new ones.

        Return what failed, by partition.
        """
        return self._background.run(self._inner.reset(group, planned))

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, tuple[int, int]]
    ) -> Mapping[TopicPartition, LedgerMQError]:
        """Commit the progress of a job that is no member of any group.

        `offsets`: (topic id, the next record to read).
        """
        return self._background.run(self._inner.commit(group, offsets))

    def delete(self, group: str) -> None:
        """Delete the group with all that it has committed.

        Raises UnknownGroup, GroupNotEmpty, Unavailable.
        """
        self._background.run(self._inner.delete(group))
