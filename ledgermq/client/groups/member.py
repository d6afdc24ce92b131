"""One life of a member: the parts that make it, its background, and its end.

Owns the tasks: heartbeats, regular commits, taking in and letting go. If one of them dies, all end,
and every call says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.client.connections import Connections
from ledgermq.client.consuming.reader import Reader
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.broadcast import Broadcast
from ledgermq.client.groups.callbacks import Callbacks
from ledgermq.client.groups.committer import Committer
from ledgermq.client.groups.committing import Commits
from ledgermq.client.groups.coordinator import Coordinator
from ledgermq.client.groups.holdings import Holdings
from ledgermq.client.groups.loading import Loading
from ledgermq.client.groups.membership import Membership
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.groups.offset_store import OffsetStore
from ledgermq.client.groups.polling import Polling
from ledgermq.client.groups.standing import Standing
from ledgermq.client.groups.start_rule import StartRule
from ledgermq.client.groups.subscription import subscription_of
from ledgermq.client.groups.topic_store import TopicOffsetStore
from ledgermq.client.offsets import Offsets
from ledgermq.client.routing import Routing
from ledgermq.client.settings import GroupSettings
from ledgermq.errors import DeadlineExceeded, LedgerMQError, OffsetOutOfRange, Unavailable
from ledgermq.offset_stores.memory import MemoryOffsetStore
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import end
from ledgermq.sources import Sources


class Member:
    """`topics`: (names, pattern)."""

    def __init__(
        self,
        connections: Connections,
        routing: Routing,
        offsets: Offsets,
        sources: Sources,
        group: str,
        topics: tuple[list[str], str],
        rule: StartRule,
        settings: GroupSettings,
        reader: Reader[GroupMessage],
    ) -> None:
        self._connections = connections
        self._routing = routing
        self._settings = settings
        self._reader = reader
        self._names = topics[0]
        self._starting = asyncio.Lock()
        self.member_id = sources.new_id().hex()
        self._coordinator = Coordinator(connections, group)
        timeout_s = settings.request_timeout_s
        self.store: OffsetStore = settings.offset_store or (
            MemoryOffsetStore(sources)
            if settings.broadcast
            else TopicOffsetStore(self._coordinator, connections, self.member_id, timeout_s)
        )
        self.committer = Committer(self.store, group, timeout_s)
        self.callbacks = Callbacks(settings)
        self.loading = Loading(self.store, group, rule, offsets, connections, timeout_s)
        self.holdings = Holdings(settings, reader, self.loading, self.committer, self.callbacks, connections.backoff)
        self.commits = Commits(self.committer, self.holdings, settings.commit)
        self.polling = Polling(settings.max_poll_interval_s)
        self.membership: Standing
        if settings.broadcast:
            backoff, refresh_s = connections.backoff(), routing.age_s_max
            self.membership = Broadcast(topics[0], routing, self.holdings, sources, backoff, refresh_s, reader.wake)
        else:
            self.membership = self._membership(topics)
        self._background: asyncio.Task[None] | None = None
        self._ended = False
        self._regular: list[asyncio.Task[None]] = []

    def _membership(self, topics: tuple[list[str], str]) -> Membership:
        return Membership(
            self._coordinator,
            self.member_id,
            subscription_of(*topics, self._settings),
            min(self._settings.longest_heartbeat_s, self._connections.attempt_timeout_s / 2),
            self.holdings,
            self.polling,
            self._connections.backoff(),
            self._reader.wake,
        )

    # -- background
    # ----------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        return self._background is not None

    async def begin(self) -> None:
        """The program asks for messages: begin, if need be, and be a member.

        Raises UnknownTopic, Unavailable, …
        """
        if not self.begun:
            async with self._starting:
                if not self.begun:
                    deadline = self._connections.deadline(self._settings.request_timeout_s)
                    for name in self._names:
                        await self._routing.refresh(name, deadline)
                    if self._ended:
                        raise Unavailable("the consumer is closed")
                    self._reader.start()
                    self._background = asyncio.get_running_loop().create_task(self._run(), name="ledgermq group member")
                    self._background.add_done_callback(lambda _: self._reader.wake())
        self.membership.wanted.set()

    async def wait_joined(self) -> None:
        """Until its partitions are read.

        Raises what the program has to be told; Unavailable after the request's time-out.
        """
        deadline = self._connections.deadline(self._settings.request_timeout_s)
        while not (self.membership.joined and self.holdings.loaded):
            if not await self._reader.changed(deadline):
                raise Unavailable(
                    f"group {self._coordinator.group!r} was not joined in time: {self.last_error}"
                ) from self.last_error

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.holdings.tasks = tasks
            self._regular.append(tasks.create_task(self.membership.run(), name="ledgermq heartbeats"))
            if self._settings.commit in ("auto", "acked"):
                self._regular.append(tasks.create_task(self._commit_regularly(), name="ledgermq regular commits"))
            await asyncio.Event().wait()

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            await self.holdings.commit_finished(
                holding for holding in list(self.holdings.held.values()) if not holding.letting_go
            )

    def raise_if_dead(self) -> None:
        if self._background is not None and self._background.done():
            raise LedgerMQError("the member's background task failed") from self._background.exception()

    def raise_trouble(self) -> None:
        """What the program has to be told, once; but for a start that it has to choose itself:
        until it has.
        """
        self.raise_if_dead()
        for place in (self.callbacks, self.membership, self.holdings):
            failure = place.take_failure()
            if failure is not None:
                raise failure
        for holding in self.holdings.readable:
            if holding.start_unknown:
                raise OffsetOutOfRange(
                    f"nothing is committed for {holding.name}, and start='error': seek to where to begin"
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

    def on_letting_go(self, told: Callable[[list[TopicPartition]], None]) -> None:
        """`told` hears of partitions, before anybody waits for what was handed out of them, that
        nothing more of them is to be begun.
        """
        self.holdings.on_letting_go = lambda holdings: told([holding.partition for holding in holdings])

    def hold_back(self, partition: TopicPartition, held_back: bool) -> None:
        """Hand out nothing of it for a moment; unlike a pause this keeps what was fetched ahead."""
        holding = self.holdings.held.get(partition)
        if holding is not None and holding.reading is not None:
            (self._reader.hold_back if held_back else self._reader.go_on)(holding.reading)

    # -- end
    # -----------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_s: float) -> None:
        """Wait for what was handed out, commit what is finished.

        Raises DeadlineExceeded, and what commits raise.
        """
        held = list(self.holdings.held.values())
        finished = await self.holdings.finished(held, asyncio.get_running_loop().time() + timeout_s)
        await self.commits.commit_all()
        if not finished:
            count = sum(holding.outstanding for holding in held)
            raise DeadlineExceeded(f"{count} messages were not finished within {timeout_s} s; what was, is committed")

    async def leave(self) -> LedgerMQError | None:
        """Stop reading, tell the program, commit, say good-bye, within `close_timeout_s`.

        Why the commit could not be, if so.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.close_timeout_s
        await end(*self._regular)
        held = list(self.holdings.held.values())
        self.holdings.stop_reading([holding for holding in held if not holding.letting_go])
        failure: LedgerMQError | None
        try:
            async with asyncio.timeout_at(deadline):
                failure = await self.holdings.settle_accounts(held) or self.callbacks.take_failure()
        except TimeoutError:
            failure = Unavailable(
                f"the group did not answer within {self._settings.close_timeout_s} s; perhaps nothing more is committed"
            )
        await self._say_goodbye(deadline)
        return failure

    async def _say_goodbye(self, deadline: float) -> None:
        """If it fails, the coordinator finds out by the session time-out."""
        if self.membership.tried and asyncio.get_running_loop().time() < deadline:
            step = pb.LEAVE_FOR_A_WHILE if self._settings.instance_id else pb.LEAVE
            try:
                await self._coordinator.leave(self.member_id, step, deadline, once=not self.membership.joined)
            except LedgerMQError as error:
                self.membership.last_error = error

    async def end(self) -> None:
        """At once. What the program still says of its messages counts no more."""
        self._ended = True
        await end(self._background)
        for holding in self.holdings.held.values():
            holding.gone = True
        self.holdings.progressed.set()
        await self.committer.close()
