"""Administration of topics, for programs (`client.topics`), and the names that a client has for it."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from ledgermq.client.admin.deletion import Before, DeletedRecords, Deletion, chosen_befores
from ledgermq.client.admin.topic_plan import TopicChange, TopicSpec, plan_topics
from ledgermq.client.admin.topics import Admin
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicDescription, TopicPartition


class TopicAdmin:
    """Administration of topics, as `client.topics`. Every call ends within the client's `timeout_s`."""

    def __init__(self, context: ClientContext, admin: Admin) -> None:
        self._context = context
        self._admin = admin
        self._deletion = Deletion(context)

    async def create(
        self,
        name: str,
        partitions: int = 0,
        settings: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
        wait: bool = True,
    ) -> TopicDescription:
        """Create a topic.

        `partitions=0`: the cluster's default. `settings`: topic settings by name, like
        {"retention.ms": 3600000}; those in milliseconds also accept a duration ("5d", or a
        timedelta). `if_not_exists`: leave an existing topic unchanged, and return its description.
        `wait`: while a deleted topic of this name is being removed, which takes a second or so, try again
        within `timeout_s`; False: raise TopicBeingDeleted at once.

        Of several programs that create the same topic, one succeeds, and the others get TopicExists, also if
        answers are lost on the way. Only a broker of an earlier release takes an equal topic for the caller's own
        then.

        Raises InvalidTopicName, InvalidConfig, TopicExists, TopicBeingDeleted, Unavailable.
        """
        return await self._admin.create_topic(name, partitions, settings or {}, if_not_exists=if_not_exists, wait=wait)

    async def list(
        self, *, deleted: bool = False, prefix: str = "", after: str = "", limit: int = 0
    ) -> builtins.list[TopicDescription]:
        """Return all user topics, by name; with `deleted`, those instead that were deleted and can be brought back.

        `prefix`: only names that begin with it. `limit`: a page of so many topics, 0 for all; `after`: the name with
        which the page before ended.
        """
        return await self._admin.list_topics(deleted=deleted, prefix=prefix, after=after, limit=limit)

    async def describe(self, name: str) -> TopicDescription:
        """Return a topic's partitions and settings. Raises UnknownTopic, Unavailable."""
        return await self._admin.describe_topic(name)

    async def alter(
        self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None, unset: Iterable[str] = ()
    ) -> TopicDescription:
        """Add partitions (`partitions` is the new number; 0 = unchanged), change settings, or
        reset settings to their defaults.

        Raises UnknownTopic, InvalidConfig, Unavailable.
        """
        return await self._admin.alter_topic(name, partitions, settings or {}, unset)

    async def plan(self, topics: Iterable[TopicSpec]) -> builtins.list[TopicChange]:
        """Return what has to change for the cluster to have these topics, in their order; change nothing.

        A plan never removes a topic, a partition or a record. Raises InvalidTopicName, InvalidConfig (fewer
        partitions than a topic has, a topic twice), Unavailable.
        """
        return plan_topics(topics, await self.list())

    async def apply(self, change: TopicChange) -> TopicDescription:
        """Carry out one change of a plan. A change that was carried out already changes nothing more.

        Raises TopicExists if another program has created the topic since the plan was made, and what
        `create` and `alter` raise.
        """
        if change.action == "create":
            return await self.create(change.name, change.partitions, change.settings)
        if change.action == "alter":
            return await self.alter(change.name, change.partitions, change.settings, change.unset)
        return await self.describe(change.name)

    async def delete(self, name: str, *, now: bool = False) -> datetime | None:
        """Delete a topic with all its records. Return until when `undelete` can bring it back; None if it
        cannot.

        The topic setting `topic.delete.grace.ms`, else the brokers', says how long it can: one day by default. Until
        then the topic keeps its name and its storage. `now`: delete it for good, also a topic that is deleted
        already and could be brought back. After that the name can be used again once every broker has released it.

        A topic that another program creates under the same name meanwhile stays. A topic that is deleted already is
        no error. Raises UnknownTopic, LegalHold, Unavailable.
        """
        return await self._admin.delete_topic(name, now=now)

    async def delete_with_cuts(self, name: str) -> Sequence[str]:
        """Delete a topic for good, and drop every cut that has it, so that nothing keeps its records: all in one step.
        Return the names of the cuts that were dropped, without those of an earlier attempt whose answer was lost.

        Each of these cuts is lost for all topics. It needs the right `cluster`, too. Copies of the root, archives and
        tables outside of it stay. Raises UnknownTopic, TopicBeingDeleted (then drop the cuts by `client.cuts.drop`),
        LegalHold, Unauthorized, InvalidRequest if the controller is a broker of an earlier release, OutcomeUnknown if
        the topic is deleted, but maybe without its cuts: another call did it, or the answer was lost; Unavailable.
        """
        return await self._admin.delete_with_cuts(name)

    async def undelete(self, name: str) -> TopicDescription:
        """Bring a deleted topic back, with its records, its settings and the offsets that groups have committed. A
        topic that is not deleted stays as it is.

        Raises UnknownTopic if its grace is over or it was deleted at once, and Unavailable.
        """
        return await self._admin.undelete_topic(name)

    async def delete_records(
        self,
        topic: str,
        before: Before | Mapping[int, Before],
        partitions: Iterable[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> dict[int, DeletedRecords]:
        """Permanently delete records, from the beginning of the log up to `before`. Return by
        partition where its log begins from now on.

        `before`: an offset, a datetime with time zone (records before the first one at or after
        that time), "end", or a dict with one of these for each partition. `partitions`: all, if
        None; one offset for several partitions is refused. From then on, consumers find the deleted
        offsets out of range. `dry_run`: only return what would be deleted. Raises OffsetOutOfRange
        (above the end), LegalHold, UnknownTopic, UnknownPartition, InvalidRequest, Unavailable.
        """
        deadline = self._context.connections.deadline()
        route = await self._context.routing.refresh(topic, deadline)
        befores = chosen_befores(before, partitions, route.partitions)
        return await self._deletion.delete(topic, befores, dry_run=dry_run, deadline=deadline)

    async def list_offsets(self, topic: str, at: Literal["earliest", "latest"] | datetime = "latest") -> dict[int, int]:
        """Return by partition the first offset kept, the next one to be written, or the first at
        or after a time (the latest if there is none).

        Raises UnknownTopic, Unavailable.
        """
        deadline = self._context.connections.deadline()
        route = await self._context.routing.refresh(topic, deadline)
        wanted = {TopicPartition(topic, partition): at for partition in range(route.partitions)}
        found = await self._context.offsets.find(wanted, deadline)
        return {partition.partition: found[partition] for partition in wanted}


class TopicNames:
    """What a client has in short of its `topics`. Every call ends within the client's `timeout_s`."""

    def __init__(self, topics: TopicAdmin) -> None:
        self.topics = topics
        """Administration of topics: create, list, describe, alter, delete, and plans of many."""

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        settings: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
        wait: bool = True,
    ) -> TopicDescription:
        """Create a topic: see `TopicAdmin.create`."""
        return await self.topics.create(name, partitions, settings, if_not_exists=if_not_exists, wait=wait)

    async def list_topics(
        self, *, deleted: bool = False, prefix: str = "", after: str = "", limit: int = 0
    ) -> list[TopicDescription]:
        """Return all user topics: see `TopicAdmin.list`."""
        return await self.topics.list(deleted=deleted, prefix=prefix, after=after, limit=limit)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's partitions and settings: see `TopicAdmin.describe`."""
        return await self.topics.describe(name)

    async def alter_topic(
        self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None, unset: Iterable[str] = ()
    ) -> TopicDescription:
        """Add partitions, change settings, or reset them: see `TopicAdmin.alter`."""
        return await self.topics.alter(name, partitions, settings, unset)

    async def plan_topics(self, topics: Iterable[TopicSpec]) -> list[TopicChange]:
        """Return what has to change for the cluster to have these topics: see `TopicAdmin.plan`."""
        return await self.topics.plan(topics)

    async def apply_topic(self, change: TopicChange) -> TopicDescription:
        """Carry out one change of a plan: see `TopicAdmin.apply`."""
        return await self.topics.apply(change)

    async def delete_topic(self, name: str, *, now: bool = False) -> datetime | None:
        """Delete a topic with all its records: see `TopicAdmin.delete`."""
        return await self.topics.delete(name, now=now)

    async def undelete_topic(self, name: str) -> TopicDescription:
        """Bring a deleted topic back: see `TopicAdmin.undelete`."""
        return await self.topics.undelete(name)

    async def delete_records(
        self,
        topic: str,
        before: Before | Mapping[int, Before],
        partitions: Iterable[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> dict[int, DeletedRecords]:
        """Permanently delete records: see `TopicAdmin.delete_records`."""
        return await self.topics.delete_records(topic, before, partitions, dry_run=dry_run)

    async def list_offsets(self, topic: str, at: Literal["earliest", "latest"] | datetime = "latest") -> dict[int, int]:
        """Return by partition an offset: the first, the next, or that of a time: see `TopicAdmin.list_offsets`."""
        return await self.topics.list_offsets(topic, at)
