"""Ask the owners of a queue's partitions for messages: one long poll at each owner at a time, and for each level of
priority. Topics are looked up in the background, and so is the group's retry topic, which is there once dead letters
were redriven.

Invariant: no error ends the attempts. What failed is asked again, as long as the program calls for messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ledgermq.client.context import ClientContext
from ledgermq.client.groups.retry_topics import retry_topic
from ledgermq.client.messages.descriptions import TopicPartition, check_topic_text
from ledgermq.errors import InvalidConfig, LedgerMQError, NotOwner, Unauthorized, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ShareFetchFrame
from ledgermq.protocol.levels import level_of
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.tasks import end

POLL_S_MAX = 5.0
UNOWNED_LOOK_S = 0.2
"""A topic with a partition whose owner is not known is looked up again after this time."""
PATIENCE_S = 0.25
"""How long messages of a lower level of priority wait for an answer that should have higher ones."""
UNKNOWN_TOPIC_GRACE_S = 5.0
"""A broker may not know a new topic yet."""
RETRY_LOOK_S = 30.0
"""Pause between two looks for the group's retry topic, while it is not there."""


@dataclass(eq=False)
class _Source:
    """A partition. `asking`: a poll that names it is under way, since `asked_s`. `failing`: why it is not served at
    present.
    """

    at: TopicPartition
    backoff: Backoff
    asking: bool = False
    asked_s: float = 0.0
    not_before_s: float = 0.0
    unknown_since_s: float | None = None
    failing: LedgerMQError | None = None


@dataclass
class Polls:
    """`request_of(partitions, wait in seconds)`. `on_answer(frame, when it was asked)`. `changed` is set after
    each answer, and when `refusal` is set: an error that does not pass with time. `retry`: a topic that is read from
    its beginning, if it is there and the member may read it.
    """

    context: ClientContext
    topics: Sequence[str]
    request_of: Callable[[list[pb.SharePartition], float], pb.ShareFetchRequest]
    on_answer: Callable[[ShareFetchFrame, float], None]
    retry: str = ""
    held_s_max: float = POLL_S_MAX
    """How long one poll may be held."""
    refreshed_s: dict[str, float] = field(default_factory=dict)
    """By topic: when it was last looked up."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: LedgerMQError | None = None
    failing: LedgerMQError | None = None
    """The last error of a poll or a look-up, until a poll succeeds."""
    failing_since_s: float = 0.0
    """Since when, or when it was last raised."""

    def __post_init__(self) -> None:
        self._failed_s = 0.0
        """When an attempt last failed."""
        self._sources: dict[TopicPartition, _Source] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: dict[str, asyncio.Task[None]] = {}
        """Look-ups under way, by topic."""
        self._busy: set[int] = set()
        """Levels of priority of which the last answer had messages."""

    @property
    def has_levels(self) -> bool:
        return any(self.context.routing.levels_of(topic) > 1 for topic in self.topics)

    def level_of(self, at: TopicPartition) -> int:
        """Return the level of priority of a partition."""
        return level_of(at.partition, self.context.routing.levels_of(at.topic))

    def coming(self, now_s: float) -> set[int]:
        """Return the levels of which messages should arrive at any moment, once they are asked for."""
        near = {
            self.level_of(source.at)
            for source in (self._sources.values() if self._busy else ())
            if (now_s - source.asked_s < PATIENCE_S if source.asking else source.not_before_s <= now_s)
        }
        return near & self._busy

    @property
    def knows_partitions(self) -> bool:
        """Return whether a broker has said which partitions the topics have."""
        return bool(self._sources)

    @property
    def unserved(self) -> LedgerMQError | None:
        """Return why no partition is served at present; None: one is, or the first attempt is under way."""
        if any(source.failing is None for source in self._sources.values()):
            return None
        return self.failing

    def begin(self, wait_s: float, beside: Collection[int] = ()) -> None:
        """Poll each owner that is not polled, for each level of priority by itself; a poll is held up to `wait_s` while
        nothing is open. `beside`: levels of which no messages are wanted now.

        Raises InvalidTopicName.
        """
        self._find_partitions()
        now_s = asyncio.get_running_loop().time()
        by_owner: dict[tuple[str, int, bool], list[_Source]] = {}
        for source in self._sources.values():
            if source.asking or source.not_before_s > now_s or (level := self.level_of(source.at)) in beside:
                continue
            owner = self.context.routing.owner(*source.at)
            if owner is not None:
                by_owner.setdefault((owner, level, source.at.topic == self.retry), []).append(source)
        for (owner, level, _), sources in by_owner.items():
            # A partition that was not served is asked for without a wait: its answer shows that it is served again.
            held_s = 0.0 if any(source.failing is not None for source in sources) else min(wait_s, self.held_s_max)
            for source in sources:
                source.asking, source.asked_s = True, now_s
            poll = asyncio.create_task(self._poll(owner, level, sources, held_s), name=f"poll {owner}")
            self._tasks.add(poll)
            poll.add_done_callback(self._tasks.discard)

    @property
    def next_s(self) -> float:
        """Return when `begin` may have something to do again, at the latest."""
        now_s = asyncio.get_running_loop().time()
        owner, look_s = self.context.routing.owner, now_s + UNOWNED_LOOK_S
        later = [
            source.not_before_s if owner(*source.at) is not None else max(source.not_before_s, look_s)
            for source in self._sources.values()
            if not source.asking
        ]
        return max(now_s + 0.01, min(later, default=look_s if not self._sources else now_s + POLL_S_MAX))

    async def until_answered(self) -> None:
        """Wait until the polls under way have ended."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        await end(*self._tasks, *self._looking.values())

    def _find_partitions(self) -> None:
        """Look topics up: at the beginning, when their metadata is old, and when an owner is not known."""
        routing, now_s = self.context.routing, asyncio.get_running_loop().time()
        for topic in (*self.topics, self.retry) if self.retry else self.topics:
            route = routing.known(topic)
            unowned = route is None or any(routing.owner(topic, p) is None for p in range(route.partitions))
            age_s = now_s - self.refreshed_s.get(topic, float("-inf"))
            pause_s = UNOWNED_LOOK_S if unowned else routing.age_s_max
            if route is None and topic == self.retry:
                pause_s = RETRY_LOOK_S
            if topic not in self._looking and age_s > pause_s:
                check_topic_text(topic)
                self.refreshed_s[topic] = now_s
                self._looking[topic] = asyncio.create_task(self._look_up(topic), name=f"look-up of {topic}")
            for partition in range(0 if route is None else route.partitions):
                at = TopicPartition(topic, partition)
                if at not in self._sources:
                    self._sources[at] = _Source(at, self.context.connections.backoff())

    async def _look_up(self, topic: str) -> None:
        try:
            await self.context.routing.refresh(topic, self.context.connections.deadline())
        except LedgerMQError as error:
            if topic == self.retry:
                pass  # it need not be there
            elif error.retriable:
                self._note(error)
            else:
                self.refusal = error
        else:
            for source in self._sources.values():
                if source.at.topic == topic and self.context.routing.owner(*source.at) is None:
                    source.failing = source.failing or Unavailable(f"{source.at} has no owner at present")
                    self._note(source.failing)
        finally:
            del self._looking[topic]
            self.changed.set()

    def _note(self, error: LedgerMQError) -> None:
        now_s = asyncio.get_running_loop().time()
        if self.failing is None:
            self.failing_since_s = now_s
        self.failing, self._failed_s = error, now_s

    def raise_if_failing(self, begun_s: float, patience_s: float) -> None:
        """Raise Unavailable if nothing was served for longer than `patience_s`, and an attempt has failed since
        `begun_s`. Further calls try again for as long.
        """
        now_s = asyncio.get_running_loop().time()
        if self.failing is None or self._failed_s < begun_s or now_s - self.failing_since_s <= patience_s:
            return
        self.failing_since_s = now_s
        raise Unavailable(f"no broker has served it for {patience_s:g} s: {self.failing.message}") from self.failing

    async def _poll(self, owner: str, level: int, sources: Sequence[_Source], wait_s: float) -> None:
        routing = self.context.routing
        wanted = []
        for source in sources:
            route = routing.known(source.at.topic)
            topic_id = 0 if route is None else route.topic_id
            wanted.append(pb.SharePartition(topic=source.at.topic, topic_id=topic_id, partition=source.at.partition))
        request = self.request_of(wanted, wait_s)
        if sources[0].at.topic == self.retry:  # what was redriven before its first look is meant, too
            request.ClearField("latest")
            request.ClearField("timestamp_us")
        asked_s, has_more = asyncio.get_running_loop().time(), False
        try:
            deadline = self.context.connections.deadline(wait_s + self.context.connections.attempt_timeout_s)
            frame = await self.context.connections.ask_at(owner, lambda line: line.share_fetch(request), deadline)
        except LedgerMQError as error:
            if error.retriable:
                routing.unreachable(owner)
            for source in sources:
                self._failed(source, error, owner)
        else:
            failed = {
                TopicPartition(part.topic, part.partition): error_from_proto(part.error)
                for part in frame.header.partitions
                if part.HasField("error")
            }
            for source in sources:
                if (refused := failed.get(source.at)) is not None:
                    self._failed(source, refused, owner)
                else:
                    source.backoff.reset()
                    source.unknown_since_s = source.failing = self.failing = None
            self.on_answer(frame, asked_s)
            has_more = any(part.ranges for part in frame.header.partitions)
        finally:
            self._busy.discard(level)
            if has_more:
                self._busy.add(level)
            for source in sources:
                source.asking = False
            self.changed.set()

    def _failed(self, source: _Source, error: LedgerMQError, owner: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if source.at.topic == self.retry and isinstance(error, UnknownTopic | Unauthorized):
            self._sources.pop(source.at, None)
            self.context.routing.forget(self.retry)
            return
        self._note(error)
        source.failing = error
        source.not_before_s = now_s + source.backoff.next_s(error.retry_after_ms)
        if isinstance(error, NotOwner):
            self.context.routing.redirected(*source.at, error.owner, refused_by=owner)
            if error.owner:
                source.not_before_s = now_s
        elif isinstance(error, UnknownTopic):
            source.unknown_since_s = now_s if source.unknown_since_s is None else source.unknown_since_s
            self.context.routing.forget(source.at.topic)
            if now_s - source.unknown_since_s > UNKNOWN_TOPIC_GRACE_S:
                self.refusal = error
        elif not error.retriable:
            self.refusal = error
        elif isinstance(error, Unavailable):
            self.context.routing.redirected(*source.at, None, refused_by=owner)


def retry_of(group: str, topics: Sequence[str]) -> str:
    """Return the retry topic of a group that reads these topics; "" if the group's name is too long for one, or it is
    one of the topics.
    """
    try:
        topic = retry_topic(group)
    except InvalidConfig:
        return ""
    return "" if topic in topics else topic
