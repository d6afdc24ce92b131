"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack, cast, overload

import pyarrow as pa

from ledgermq.client.consuming.consumer import Consumer as AsyncConsumer
from ledgermq.client.consuming.start import Start
from ledgermq.client.front.consumers import READ_BYTES_MAX
from ledgermq.client.front.consumers import MakingConsumers as AsyncMakingConsumers
from ledgermq.client.groups.assignment import GivenRule, Topics
from ledgermq.client.paging.pages import BYTES_MAX as PAGE_BYTES_MAX
from ledgermq.client.paging.pages import Page, PageOrder
from ledgermq.client.setting_types import ConsumerOptions, MemberOptions, QueueOptions, TableOptions
from ledgermq.client.settings.serializers import B, V
from ledgermq.sync.background import Background, Callers, as_coroutine, in_threads
from ledgermq.sync.consuming import Consumer, GroupConsumer
from ledgermq.sync.queues import Queue
from ledgermq.sync.tables import Table


class MakingConsumers:
    """The calls of a client that make consumers, or read."""

    _callers: Callers

    def __init__(self, background: Background, inner: AsyncMakingConsumers) -> None:
        self._background = background
        self._inner = inner

    @overload
    def consumer(
        self,
        topics: str | Iterable[str],
        partitions: Iterable[int] | None = None,
        start: Start = "earliest",
        group: None = None,
        *,
        end: Start | None = None,
        until_end: bool = False,
        **settings: Unpack[ConsumerOptions[V]],
    ) -> Consumer[V]: ...
    @overload
    def consumer(
        self,
        topics: Topics,
        partitions: None = None,
        start: GivenRule = "earliest",
        *,
        group: str,
        **settings: Unpack[MemberOptions[V]],
    ) -> GroupConsumer[V]: ...
    def consumer(
        self,
        topics: Topics,
        partitions: Iterable[int] | None = None,
        start: Start | GivenRule = "earliest",
        group: str | None = None,
        *,
        end: Start | None = None,
        until_end: bool = False,
        **settings: Any,
    ) -> Consumer | GroupConsumer:
        """Return a consumer of topics: a standalone one, or with `group` a member of a consumer
        group.

        Without a group it reads the given partitions (all, if None) of one or more topics, and the
        program keeps its positions. Settings: the fields of `ConsumerSettings`. `start`:
        "earliest", "latest", a datetime with time zone (first record at or after it), an age
        ("15m", "7d", a timedelta), or {partition: offset}; with several topics {(topic, partition):
        offset}. Partitions that `start` does not name begin at the earliest offset. If it names a
        partition that is not read, the first call raises UnknownPartition. `end` accepts the same
        values: only records before it are returned, and the iteration ends there. It is resolved
        when reading begins; partitions that it does not name end where they end at that time.
        `until_end=True` stands for end="latest".

        With a group it reads the partitions that the group assigns to this member. Settings: the
        fields of `GroupSettings`. `topics` may be a pattern (`re.compile(…)`, or text that begins
        with ^). `start` says where to begin in a partition for which the group has committed
        nothing, or whose committed offset no longer exists: "earliest", "latest", a datetime, an
        age, or "error". `auto_offset_reset`, if given, decides the second case. Raises
        InvalidConfig, InvalidGroupName.
        """
        made = self._background.run(
            as_coroutine(
                lambda: cast(Any, self._inner).consumer(
                    topics,
                    partitions,
                    start,
                    group,
                    end=end,
                    until_end=until_end,
                    **in_threads(settings, self._callers),
                )
            )
        )
        if isinstance(made, AsyncConsumer):
            return Consumer(self._background, made)
        return GroupConsumer(self._background, made)

    def queue(
        self, topics: str | Iterable[str], *, group: str, start: Start = "earliest", **settings: Unpack[QueueOptions[V]]
    ) -> Queue[V]:
        """Return a member of a queue group, in which any number of members share each partition.

            with client.queue("jobs", group="workers") as queue:
                for message in queue.fetch(max_records=50, timeout=3):
                    work(message)
                    message.ack()

        Every message is leased to one member, and comes again until one acknowledges it; there is no order.
        `start`: where a new group begins: "earliest", "latest", a datetime with time zone, or an age. Settings:
        the fields of `QueueSettings`. Raises InvalidConfig, InvalidGroupName.
        """
        made = self._background.run(
            as_coroutine(lambda: self._inner.queue(topics, group=group, start=start, **settings))
        )
        return Queue(self._background, made)

    def read(
        self,
        topic: str,
        partitions: int | Iterable[int] | None = None,
        start: Start | None = None,
        *,
        order: PageOrder = "oldest",
        records_max: int = 100,
        bytes_max: int = PAGE_BYTES_MAX,
        wait: float = 0.0,
        filter: str = "",
    ) -> Page:
        """Return a bounded page of records of a topic, oldest or newest first; pass its `next` as `start` of the
        following one.

        `start` as in `consumer`: where the page begins going up, "earliest" if None; with order="newest", below which
        it goes down, "latest" if None. `partitions`: at most 256; all, if None. Their records are merged by timestamp.
        After `records_max` records (10,000 at most) or `bytes_max` bytes of keys, values and headers the page ends;
        it has one record at least, if there is one. `wait`: with order="oldest", so many seconds for a first record.
        `filter`: as in `consumer`; a page may be empty then although more follow, see `Page.at_end`. Expired records
        come, too.

        Raises OffsetOutOfRange, InvalidRequest, InvalidConfig, InvalidFilter, UnknownTopic, UnknownPartition,
        Unauthorized, DataDamaged, CorruptFrame, Unavailable.
        """
        return self._background.run(
            self._inner.read(
                topic,
                partitions,
                start,
                order=order,
                records_max=records_max,
                bytes_max=bytes_max,
                wait=wait,
                filter=filter,
            )
        )

    def read_arrow(
        self,
        topic: str,
        start: Start = "earliest",
        end: Start = "latest",
        partitions: Iterable[int] | None = None,
        *,
        bytes_max: int = READ_BYTES_MAX,
        cut: str = "",
        **settings: Unpack[ConsumerOptions],
    ) -> pa.Table:
        """Return the records from `start` up to `end` (both as in `consumer`) as one table in
        memory, with the columns of `Consumer.fetch_arrow`.

        `cut`: the records that the topic had at this cut instead, also those that retention or deletion has taken
        since; `start`, `end` and settings cannot be given then.

        Raises ResourceExhausted once the table has more than `bytes_max` bytes. While the table is
        read, `prefetch_bytes_max` and one decoded batch are needed in addition. Raises Unavailable
        when no broker has served a partition for `request_timeout_s`. Settings: as in `consumer`.
        """
        return self._background.run(
            self._inner.read_arrow(topic, start, end, partitions, bytes_max=bytes_max, cut=cut, **settings)
        )

    def table(self, topic: str, **settings: Unpack[TableOptions[B]]) -> Table[B]:
        """Return a live key → value view of a keyed topic (cleanup.policy=compact), held in
        memory.

            with client.table("prices") as table:    # it has read everything up to now
                table.get("EUR")

        Settings: the fields of `TableSettings`. Raises InvalidConfig.
        """
        made = self._background.run(as_coroutine(lambda: self._inner.table(topic, **settings)))
        return Table(self._background, made)
