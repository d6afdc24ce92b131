"""A member of a group, or of a broadcast: its parts, its background tasks, and its end.

Runs heartbeats, regular commits, taking in and letting go. If one of these tasks dies, all end, and
every call of the program raises the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.client.consuming.reader import Reader
from ledgermq.client.consuming.reading import Reports
from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import Subscription
from ledgermq.client.groups.committing.commits import Commits
from ledgermq.client.groups.committing.committer import Committer
from ledgermq.client.groups.holding.handing_out import HandingOut, Polling
from ledgermq.client.groups.holding.holding import Holding, Start
from ledgermq.client.groups.membership.broadcast import Broadcast
from ledgermq.client.groups.membership.coordinator import Coordinator
from ledgermq.client.groups.membership.holdings import Holdings, LettingGo
from ledgermq.client.groups.membership.loading import Loading
from ledgermq.client.groups.membership.membership import Assigner, Membership
from ledgermq.client.groups.membership.moving import MovingStore
from ledgermq.client.groups.membership.staged_offsets import StagedOffsets
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.retries.refusals import Refusals
from ledgermq.client.groups.retry_topics import retry_topic
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.offsets import At
from ledgermq.client.settings.values import GroupSettings
from ledgermq.errors import Closed, DeadlineExceeded, LedgerMQError, OffsetOutOfRange, Unavailable
from ledgermq.offset_stores.cluster import TopicOffsetStore
from ledgermq.offset_stores.contract import OffsetStore
from ledgermq.offset_stores.memory import MemoryOffsetStore
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.shared_start import SharedStart
from ledgermq.runtime.tasks import end, raise_end


class Member:
    """`out_of_range`: where to continue when an offset no longer exists; None: calls raise.

    `check` is called by every call that waits for messages. `letting_go`: see `LettingGo`.
    """

    def __init__(
        self,
        context: ClientContext,
        subscription: Subscription,
        settings: GroupSettings,
        out_of_range: At | None,
        check: Callable[[], None],
        letting_go: LettingGo,
        refusals: Refusals | None = None,
        moving: MovingStore | None = None,
    ) -> None:
        self._context = context
        self._settings = settings
        self._names = subscription.names
        self._starting = SharedStart(self._begin)
        self._tasks = asyncio.TaskGroup()
        self.member_id = context.sources.new_id().hex()
        self._coordinator = Coordinator(context.connections, subscription.group)
        held: dict[TopicPartition, Holding] = {}
        expiry = None if settings.deliver_expired else Expiry(context.routing.ttl_of, context.sources.now_us)
        self.handing_out = HandingOut(held, context.sources, expiry, finishing=settings.commit == "auto")
        self.reader: Reader[GroupMessage] = Reader(
            context,
            settings,
            out_of_range=out_of_range,
            check=check,
            messages_of=self.handing_out.messages_of,
            expired=self.handing_out.skipped_expired,
            reports=Reports(self.handing_out.taken, self.handing_out.skipped),
            unfiltered=retry_topic(subscription.group) if moving is not None else "",
            group=subscription.group,
        )
        self._moving = moving
        store, timeout_s = self._store(), settings.request_timeout_s
        self._committer = Committer(moving or store, subscription.group, timeout_s)
        self.loading = Loading(context, store, subscription.group, subscription.rule, timeout_s)
        refusals = refusals or Refusals(settings.failed_held_max, settings.failed_held_bytes_max)
        parts = self.reader, self.loading, self._committer, self._tasks
        self.holdings = Holdings(settings, held, *parts, letting_go, refusals, context.replier)
        self.reader.interrupted = lambda: not self.holdings.draining and self.handing_out.is_due()
        self.commits = Commits(self._committer, held, self.holdings.progressed, settings.commit)
        self.transactions = self._staged_offsets()
        """None: offsets are not kept in the cluster."""
        if moving is not None:
            assert self.transactions is not None, "checked by the client"
            moving.attach(store, held, self.transactions)
            self.transactions = None  # no other transaction may commit its offsets: it would not move what failed
        self.polling = Polling(settings.max_poll_interval_s)
        self.membership = self._assigner(subscription)
        self._background: asyncio.Task[None] | None = None
        self._ended = False
        self._regular: list[asyncio.Task[None]] = []

    def _staged_offsets(self) -> StagedOffsets | None:
        if self._settings.offset_store is not None or self._settings.broadcast:
            return None
        return StagedOffsets(self._coordinator, self.member_id, self.commits, self._committer, self.holdings)

    def _assigner(self, subscription: Subscription) -> Assigner:
        settings, holdings, wake = self._settings, self.holdings, self.reader.wake
        if settings.broadcast:
            return Broadcast(self._context, subscription.names, holdings, wake)
        return Membership(self._coordinator, self.member_id, subscription, settings, holdings, self.polling, wake)

    def _store(self) -> OffsetStore:
        if self._settings.offset_store is not None:
            return self._settings.offset_store
        if self._settings.broadcast:
            return MemoryOffsetStore(self._context.sources)
        connections, timeout_s = self._context.connections, self._settings.request_timeout_s
        return TopicOffsetStore(self._coordinator, connections, self.member_id, timeout_s)

    # -- background
    # ----------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        return self._background is not None

    async def begin(self, deadline: float | None = None) -> None:
        """Start the background tasks at the first call, and join the group. Raises UnknownTopic,
        Unavailable, …; Unavailable also at `deadline`, or after one second, whichever is later.
        """
        if not await self._starting.wait(deadline):
            what = ", ".join(self._names) or f"the retry topics of group {self._coordinator.group}"
            raise Unavailable(f"no broker has described {what} in time; the member goes on trying")
        self.membership.wanted.set()

    async def _begin(self) -> None:
        deadline = self._context.connections.deadline(self._settings.request_timeout_s)
        if self._moving is not None:
            await self._moving.prepare()
        for name in self._names:
            await self._context.routing.refresh(name, deadline)
        if self._ended:
            raise Closed("the consumer is closed")
        self.reader.start()
        self._background = asyncio.get_running_loop().create_task(self._run(), name="ledgermq group member")
        self._background.add_done_callback(lambda _: self.reader.wake())

    async def wait_joined(self) -> None:
        """Wait until its partitions are read.

        Raises what calls for messages raise; Unavailable after `request_timeout_s`.
        """
        deadline = self._context.connections.deadline(self._settings.request_timeout_s)
        while not (self.membership.joined and self.holdings.loaded):
            if not await self.reader.changed(deadline):
                raise Unavailable(
                    f"group {self._coordinator.group!r} was not joined in time: {self.last_error}"
                ) from self.last_error

    async def _run(self) -> None:
        async with self._tasks as tasks:
            self._regular.append(tasks.create_task(self.membership.run(), name="ledgermq heartbeats"))
            if self._settings.commit != "manual":
                self._regular.append(tasks.create_task(self._commit_regularly(), name="ledgermq regular commits"))
            await asyncio.Event().wait()

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            if self._settings.commit == "before":
                await self.holdings.commit_skipped()
                continue
            await self.holdings.commit_finished(
                holding for holding in list(self.holdings.held.values()) if holding.kept
            )

    def raise_if_dead(self) -> None:
        if self._background is not None and self._background.done():
            raise_end(self._background, "the consumer")

    def raise_trouble(self) -> None:
        """Raise each error that stops this member, once. A start that the program must choose is
        raised until it is chosen.
        """
        self.raise_if_dead()
        for place in (self.holdings.callbacks, self.membership, self.holdings):
            failure = place.take_failure()
            if failure is not None:
                raise failure
        for holding in self.holdings.readable:
            if holding.start is Start.UNCHOSEN:
                raise OffsetOutOfRange(
                    f"no offset is committed for {holding.partition}, and start='error': seek to choose a start"
                )
        since_s, now_s = self.membership.failing_since_s, asyncio.get_running_loop().time()
        if since_s is not None and now_s - since_s > self._settings.request_timeout_s:
            self.membership.failing_since_s = now_s
            last = self.membership.last_error
            raise Unavailable(f"the group's coordinator has not answered for {now_s - since_s:.1f} s: {last}") from last

    @property
    def last_error(self) -> LedgerMQError | None:
        return self.membership.last_error or self.holdings.last_error

    # -- for handlers
    # --------------------------------------------------------------------------------------------------

    def hold_back(self, partition: TopicPartition, held_back: bool) -> None:
        """Stop returning its messages, or continue. Unlike a pause this keeps the batches that
        were fetched ahead.
        """
        holding = self.holdings.held.get(partition)
        if holding is not None and holding.reading is not None:
            (self.reader.hold_back if held_back else self.reader.go_on)(holding.reading)

    def rewind(self) -> None:
        """Deliver again what is not finished, unless an open transaction has staged it."""
        self.holdings.rewind(self.holdings.readable)

    # -- end
    # -----------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Wait until the program has finished the messages that it received, and commit.

        Raises DeadlineExceeded, and what commits raise.
        """
        held = list(self.holdings.held.values())
        finished = await self.holdings.finished(held, asyncio.get_running_loop().time() + timeout_s)
        await self.commits.commit_all()
        if not finished:
            count = sum(holding.outstanding for holding in held)
            raise DeadlineExceeded(f"{count} messages were not finished within {timeout_s} s; the others are committed")

    async def leave(self) -> LedgerMQError | None:
        """Stop reading, call `on_revoked`, commit, and leave the group, within `close_timeout_s`.

        Return the error of the commit, if it failed.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.close_timeout_s
        await end(*self._regular)
        held = list(self.holdings.held.values())
        self.holdings.stop_reading([holding for holding in held if holding.kept])
        self.holdings.condemn_transactions(held)
        failure: LedgerMQError | None
        try:
            async with asyncio.timeout_at(deadline):
                failure = await self.holdings.settle_accounts(held) or self.holdings.callbacks.take_failure()
        except TimeoutError:
            failure = Unavailable(
                f"the group did not answer within {self._settings.close_timeout_s} s; the last commit may not be stored"
            )
        await self._leave_group(deadline)
        return failure

    async def _leave_group(self, deadline: float) -> None:
        """Leave the group. If that fails, the coordinator notices after the session time-out."""
        if self.membership.tried and asyncio.get_running_loop().time() < deadline:
            step = pb.LEAVE_FOR_A_WHILE if self._settings.instance_id else pb.LEAVE
            try:
                await self._coordinator.leave(self.member_id, step, deadline, once=not self.membership.joined)
            except LedgerMQError as error:
                self.membership.last_error = error

    async def end(self) -> None:
        """End at once; later acknowledgements are ignored."""
        self._ended = True
        await self._starting.close()
        await end(self._background)
        self.holdings.end()
        await self._committer.close()
        if self._moving is not None:
            await self._moving.close()
