"""What a client reads with: consumers, members of groups and queues, tables, pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack, overload

import pyarrow as pa

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import TABLE_SCHEMA
from ledgermq.client.consuming.start import Start
from ledgermq.client.cuts.reading import read_table
from ledgermq.client.front.making import Making
from ledgermq.client.groups.assignment import GivenRule, Topics, check_rule, subscription_of, topics_of
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.handlers.handler import Handler
from ledgermq.client.groups.handlers.retry import Levels, check_consumer_retry, check_levels
from ledgermq.client.groups.membership.holdings import LettingGo
from ledgermq.client.groups.retries.moves import MovePolicy
from ledgermq.client.groups.retries.refusals import Refusals
from ledgermq.client.groups.retries.retry_creation import RetryTopics
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.offsets import At
from ledgermq.client.paging.pages import BYTES_MAX as PAGE_BYTES_MAX
from ledgermq.client.paging.pages import Page, PageOrder, Pages
from ledgermq.client.queues.dead_letters import dead_letters_of
from ledgermq.client.queues.queue import Queue
from ledgermq.client.setting_types import (
    ConsumerOptions,
    MemberOptions,
    QueueOptions,
    TableOptions,
)
from ledgermq.client.settings.serializers import B, V
from ledgermq.client.settings.values import (
    ConsumerSettings,
    GroupSettings,
    QueueSettings,
    TableSettings,
    settings_from,
)
from ledgermq.client.tables.table import Table
from ledgermq.client.transactions.handling.moving import TransactionalMoves, moving_id
from ledgermq.errors import InvalidConfig, InvalidRequest, ResourceExhausted

READ_BYTES_MAX = 2**30


class MakingConsumers(Making):
    """The calls of a client that make consumers, or read."""

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
        self._forget_closed()
        made: Consumer | GroupConsumer
        if group is None:
            if until_end and end is not None:
                raise InvalidConfig("until_end=True stands for end='latest': give only one of them")
            made = self._plain_consumer(topics, partitions, start, "latest" if until_end else end, settings)
        else:
            if until_end or end is not None:
                raise InvalidConfig(
                    "a member of a group never stops at an end; leave out either group, or end and until_end"
                )
            if partitions is not None:
                raise InvalidConfig("a group assigns the partitions itself; leave out either partitions or group")
            made = self._group_consumer(topics, start, group, settings)
        self._made.append(made)
        return made

    def queue(
        self,
        topics: str | Iterable[str],
        *,
        group: str,
        start: Start = "earliest",
        **settings: Unpack[QueueOptions[V]],
    ) -> Queue[V]:
        """Return a member of a queue group, in which any number of members share each partition.

            async with client.queue("jobs", group="workers") as queue:
                for message in await queue.fetch(max_records=50, timeout=3):
                    work(message)
                    message.ack()

        Every message is leased to one member, and comes again until one acknowledges it; there is no order.
        `start`: where a new group begins: "earliest", "latest", a datetime with time zone, or an age. Settings:
        the fields of `QueueSettings`. Raises InvalidConfig, InvalidGroupName.
        """
        self._forget_closed()
        made = self._queue(topics, group, start, settings_from(QueueSettings, settings))
        self._made.append(made)
        return made

    async def read(
        self,
        topic: str,
        partitions: int | Iterable[int] | None = None,
        start: Start | None = None,
        *,
        order: PageOrder = "oldest",
        records_max: int = 100,
        bytes_max: int = PAGE_BYTES_MAX,
        wait: float = 0.0,
        filter: str = "",  # noqa: A002  the name of the setting
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
        pages = Pages(self._context)
        return await pages.read(topic, partitions, start, order, records_max, bytes_max, float(wait), filter)

    async def read_arrow(
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
        if cut:
            if settings or (start, end) != ("earliest", "latest"):
                raise InvalidRequest("a cut is read whole: give neither start nor end nor settings beside it")
            return await read_table(self._context, cut, topic, partitions, bytes_max)
        tables = []
        size = 0
        async with self.consumer(topic, partitions, start, end=end, **settings) as consumer:
            await consumer.wait_ready()
            while not consumer.at_end:
                tables.append(await consumer.fetch_arrow())
                size += tables[-1].nbytes
                if size > bytes_max:
                    raise ResourceExhausted(
                        f"topic {topic!r} has more than {bytes_max} bytes from {start!r} to {end!r}: read a part of it,"
                        " raise bytes_max, or read it piece by piece from consumer(…, end=…).fetch_arrow()"
                    )
        return pa.concat_tables([TABLE_SCHEMA.empty_table(), *tables])

    def table(self, topic: str, **settings: Unpack[TableOptions[B]]) -> Table[B]:
        """Return a live key → value view of a keyed topic (cleanup.policy=compact), held in
        memory.

            async with client.table("prices") as table:    # it has read everything up to now
                table.get("EUR")

        Settings: the fields of `TableSettings`. Raises InvalidConfig.
        """
        self._forget_closed()
        parsed = settings_from(TableSettings, settings)
        made: Table[B] = Table(
            lambda: Consumer(self._context, [topic], None, "earliest", None, parsed),
            topic,
            parsed.table_bytes_max,
        )
        self._made.append(made)
        return made

    def _plain_consumer(
        self,
        topics: Topics,
        partitions: Iterable[int] | None,
        start: Start,
        end: Start | None,
        settings: Mapping[str, Any],
    ) -> Consumer:
        names, pattern = topics_of(topics)
        if pattern:
            raise InvalidConfig("only a group can read topics by a pattern: use client.consumer(…, group=…)")
        chosen = None if partitions is None else list(partitions)
        parsed = settings_from(ConsumerSettings, settings)
        return Consumer(self._context, names, chosen, start, end, parsed)

    def _group_consumer(
        self,
        topics: Topics,
        start: object,
        group: str,
        settings: Mapping[str, Any],
        letting_go: LettingGo = lambda partitions: None,
        handler: Handler | None = None,
    ) -> GroupConsumer:
        settings = dict(settings)
        retry = check_consumer_retry(settings.pop("retry", None)) if handler is None else handler.settings.policy
        rule = check_rule(start, self._connections.now())
        parsed = settings_from(GroupSettings, {"rack": self._routing.rack} | settings)
        if parsed.broadcast and topics_of(topics)[1]:
            raise InvalidConfig("a broadcast cannot read topics by a pattern; name the topics")
        reset = parsed.auto_offset_reset if "auto_offset_reset" in settings else rule
        out_of_range: At | None = None if reset == "error" else reset
        subscription = subscription_of(group, topics, rule)
        held = parsed.failed_held_max, parsed.failed_held_bytes_max
        if not isinstance(retry, Levels):
            wait_s = None if retry is None else lambda attempt: retry.wait_s(attempt, self._sources.random)
            refusals = Refusals(*held, in_order=wait_s)
            return GroupConsumer(self._context, subscription, out_of_range, parsed, letting_go, refusals)
        check_levels(retry, parsed)
        expiry = Expiry(self._routing.ttl_of, self._sources.now_us)
        keeps_expired = retry.expired == "dead_letter"
        policy = MovePolicy(group, retry, self._sources, *held, expiry, keeps_expired=keeps_expired)
        topics_of_group = RetryTopics(self._context, self._admin, subscription)

        def moved(retried: int, dead: int) -> None:
            if handler is not None:
                handler.retried += retried
                handler.dead_lettered += dead

        moving = TransactionalMoves(
            moving_id(group, parsed.instance_id or self._sources.new_id().hex()),
            policy,
            self.transactions,
            self._sources,
            topics_of_group.create,
            moved,
        )
        return GroupConsumer(
            self._context,
            topics_of_group.subscription,
            out_of_range,
            parsed,
            letting_go,
            Refusals(*held, moves=policy),
            moving,
        )

    def _queue(
        self,
        topics: str | Iterable[str],
        group: str,
        start: Start,
        settings: QueueSettings,
        kind: type[Queue] = Queue,
    ) -> Queue:
        names, pattern = topics_of(topics)
        if pattern:
            raise InvalidConfig("a queue group reads topics by their names, not by a pattern")
        rule = check_rule(start, self._connections.now())
        if rule == "error":
            raise InvalidConfig("start of a queue must be 'earliest', 'latest', a datetime or an age, not 'error'")
        subscription = subscription_of(group, topics, rule)
        dead_letters = None
        if settings.dead_letters:
            dead_letters = dead_letters_of(self._context, self._admin, subscription)
        return kind(self._context, names, subscription.group, rule, settings, dead_letters)
