"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from ledgermq.client.admin.deletion import Before, DeletedRecords
from ledgermq.client.admin.topic_admin import TopicAdmin as AsyncTopicAdmin
from ledgermq.client.admin.topic_admin import TopicNames as AsyncTopicNames
from ledgermq.client.admin.topic_plan import TopicChange, TopicSpec
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.sync.background import Background


class TopicAdmin:
    """Administration of topics, as `client.topics`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncTopicAdmin) -> None:
        self._background = background
        self._inner = inner

    def create(
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
        return self._background.run(
            self._inner.create(name, partitions, settings, if_not_exists=if_not_exists, wait=wait)
        )

    def list(
        self, *, deleted: bool = False, prefix: str = "", after: str = "", limit: int = 0
    ) -> builtins.list[TopicDescription]:
        """Return all user topics, by name; with `deleted`, those instead that were deleted and can be brought back.

        `prefix`: only names that begin with it. `limit`: a page of so many topics, 0 for all; `after`: the name with
        which the page before ended.
        """
        return self._background.run(self._inner.list(deleted=deleted, prefix=prefix, after=after, limit=limit))

    def describe(self, name: str) -> TopicDescription:
        """Return a topic's partitions and settings. Raises UnknownTopic, Unavailable."""
        return self._background.run(self._inner.describe(name))

    def alter(
        self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None, unset: Iterable[str] = ()
    ) -> TopicDescription:
        """Add partitions (`partitions` is the new number; 0 = unchanged), change settings, or
        reset settings to their defaults.

        Raises UnknownTopic, InvalidConfig, Unavailable.
        """
        return self._background.run(self._inner.alter(name, partitions, settings, unset))

    def plan(self, topics: Iterable[TopicSpec]) -> builtins.list[TopicChange]:
        """Return what has to change for the cluster to have these topics, in their order; change nothing.

        A plan never removes a topic, a partition or a record. Raises InvalidTopicName, InvalidConfig (fewer
        partitions than a topic has, a topic twice), Unavailable.
        """
        return self._background.run(self._inner.plan(topics))

    def apply(self, change: TopicChange) -> TopicDescription:
        """Carry out one change of a plan. A change that was carried out already changes nothing more.

        Raises TopicExists if another program has created the topic since the plan was made, and what
        `create` and `alter` raise.
        """
        return self._background.run(self._inner.apply(change))

    def delete(self, name: str, *, now: bool = False) -> datetime | None:
        """Delete a topic with all its records. Return until when `undelete` can bring it back; None if it
        cannot.

        The topic setting `topic.delete.grace.ms`, else the brokers', says how long it can: one day by default. Until
        then the topic keeps its name and its storage. `now`: delete it for good, also a topic that is deleted
        already and could be brought back. After that the name can be used again once every broker has released it.

        A topic that another program creates under the same name meanwhile stays. A topic that is deleted already is
        no error. Raises UnknownTopic, LegalHold, Unavailable.
        """
        return self._background.run(self._inner.delete(name, now=now))

    def delete_with_cuts(self, name: str) -> Sequence[str]:
        """Delete a topic for good, and drop every cut that has it, so that nothing keeps its records: all in one step.
        Return the names of the cuts that were dropped, without those of an earlier attempt whose answer was lost.

        Each of these cuts is lost for all topics. It needs the right `cluster`, too. Copies of the root, archives and
        tables outside of it stay. Raises UnknownTopic, TopicBeingDeleted (then drop the cuts by `client.cuts.drop`),
        LegalHold, Unauthorized, InvalidRequest if the controller is a broker of an earlier release, OutcomeUnknown if
        the topic is deleted, but maybe without its cuts: another call did it, or the answer was lost; Unavailable.
        """
        return self._background.run(self._inner.delete_with_cuts(name))

    def undelete(self, name: str) -> TopicDescription:
        """Bring a deleted topic back, with its records, its settings and the offsets that groups have committed. A
        topic that is not deleted stays as it is.

        Raises UnknownTopic if its grace is over or it was deleted at once, and Unavailable.
        """
        return self._background.run(self._inner.undelete(name))

    def delete_records(
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
        return self._background.run(self._inner.delete_records(topic, before, partitions, dry_run=dry_run))

    def list_offsets(self, topic: str, at: Literal["earliest", "latest"] | datetime = "latest") -> dict[int, int]:
        """Return by partition the first offset kept, the next one to be written, or the first at
        or after a time (the latest if there is none).

        Raises UnknownTopic, Unavailable.
        """
        return self._background.run(self._inner.list_offsets(topic, at))


class TopicNames:
    """What a client has in short of its `topics`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncTopicNames) -> None:
        self._background = background
        self._inner = inner

    def create_topic(
        self,
        name: str,
        partitions: int = 0,
        settings: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
        wait: bool = True,
    ) -> TopicDescription:
        """Create a topic: see `TopicAdmin.create`."""
        return self._background.run(
            self._inner.create_topic(name, partitions, settings, if_not_exists=if_not_exists, wait=wait)
        )

    def list_topics(
        self, *, deleted: bool = False, prefix: str = "", after: str = "", limit: int = 0
    ) -> list[TopicDescription]:
        """Return all user topics: see `TopicAdmin.list`."""
        return self._background.run(self._inner.list_topics(deleted=deleted, prefix=prefix, after=after, limit=limit))

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic's partitions and settings: see `TopicAdmin.describe`."""
        return self._background.run(self._inner.describe_topic(name))

    def alter_topic(
        self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None, unset: Iterable[str] = ()
    ) -> TopicDescription:
        """Add partitions, change settings, or reset them: see `TopicAdmin.alter`."""
        return self._background.run(self._inner.alter_topic(name, partitions, settings, unset))

    def plan_topics(self, topics: Iterable[TopicSpec]) -> list[TopicChange]:
        """Return what has to change for the cluster to have these topics: see `TopicAdmin.plan`."""
        return self._background.run(self._inner.plan_topics(topics))

    def apply_topic(self, change: TopicChange) -> TopicDescription:
        """Carry out one change of a plan: see `TopicAdmin.apply`."""
        return self._background.run(self._inner.apply_topic(change))

    def delete_topic(self, name: str, *, now: bool = False) -> datetime | None:
        """Delete a topic with all its records: see `TopicAdmin.delete`."""
        return self._background.run(self._inner.delete_topic(name, now=now))

    def undelete_topic(self, name: str) -> TopicDescription:
        """Bring a deleted topic back: see `TopicAdmin.undelete`."""
        return self._background.run(self._inner.undelete_topic(name))

    def delete_records(
        self,
        topic: str,
        before: Before | Mapping[int, Before],
        partitions: Iterable[int] | None = None,
        *,
        dry_run: bool = False,
    ) -> dict[int, DeletedRecords]:
        """Permanently delete records: see `TopicAdmin.delete_records`."""
        return self._background.run(self._inner.delete_records(topic, before, partitions, dry_run=dry_run))

    def list_offsets(self, topic: str, at: Literal["earliest", "latest"] | datetime = "latest") -> dict[int, int]:
        """Return by partition an offset: the first, the next, or that of a time: see `TopicAdmin.list_offsets`."""
        return self._background.run(self._inner.list_offsets(topic, at))
