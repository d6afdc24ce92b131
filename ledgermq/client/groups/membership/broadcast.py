"""Broadcast: every consumer reads all partitions of its topics.

No coordinator is involved; the consumer assigns all existing partitions to itself. The epoch of an
assignment is its time in microseconds. Two consumers that share an offset store by mistake fence
each other, and the later one continues. If the store has a later epoch nevertheless (because the
clock went back), the consumer raises its epoch in growing steps until it is above the stored one.
Topics are looked up every `refresh_s`, so that the consumer notices topics that grow, are deleted,
or are created again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ledgermq.client.context import ClientContext
from ledgermq.client.groups.membership.holdings import Holdings
from ledgermq.client.groups.membership.membership import Assigner
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, RetriableError, StaleAssignment, UnknownTopic
from ledgermq.offset_stores.contract import GivenPartition

ASK_S = 10.0
FENCED_LOOK_S = 0.2


class Broadcast(Assigner):
    """Assigns all partitions of `topics` (names) to this consumer."""

    def __init__(
        self, context: ClientContext, topics: Sequence[str], holdings: Holdings, wake: Callable[[], None]
    ) -> None:
        super().__init__()
        self._topics = topics
        self._routing = context.routing
        self._sources = context.sources
        self._backoff = context.connections.backoff()
        self._refresh_s = context.routing.age_s_max
        self._holdings = holdings
        self._wake = wake
        self._epoch = 0
        self._ahead_us = 0
        """How far the clock was found to be behind the store's epoch."""

    async def run(self) -> None:
        while True:
            await self.wanted.wait()
            self._epoch = max(self._epoch + 1, self._sources.now_us() + self._ahead_us)
            try:
                self._give(await self._all())
            except RetriableError as error:
                self._failed(error)
                await asyncio.sleep(self._backoff.next_s(error.retry_after_ms))
            except LedgerMQError as error:
                self.last_error = self._refusal = error
                self.wanted.clear()
                self._wake()
            else:
                self.last_error = self.failing_since_s = None
                self._backoff.reset()
                await self._rest()

    async def _rest(self) -> None:
        """Sleep until topics must be looked up again, or until the store has refused the epoch."""
        until_s = asyncio.get_running_loop().time() + self._refresh_s
        while (left_s := until_s - asyncio.get_running_loop().time()) > 0 and not self._fenced:  # noqa: ASYNC110  one look at a time
            await asyncio.sleep(left_s if self._holdings.loaded else min(left_s, FENCED_LOOK_S))
        if self._fenced:
            await asyncio.sleep(FENCED_LOOK_S)
            self._ahead_us = max(1_000_000, 2 * self._ahead_us)

    @property
    def _fenced(self) -> bool:
        return not self._holdings.loaded and isinstance(self._holdings.last_error, StaleAssignment)

    async def _all(self) -> list[GivenPartition]:
        """Return all partitions of the topics that exist now."""
        deadline = asyncio.get_running_loop().time() + ASK_S
        given: list[GivenPartition] = []
        for topic in self._topics:
            try:
                route = await self._routing.refresh(topic, deadline)
            except UnknownTopic:
                continue
            given += [self._given(TopicPartition(topic, number), route.topic_id) for number in range(route.partitions)]
        return given

    def _given(self, partition: TopicPartition, topic_id: int) -> GivenPartition:
        """Keep the current holdings unchanged.

        A partition that comes back gets a new epoch, so that its commits are not mistaken for
        repetitions of earlier ones.
        """
        held = self._holdings.held.get(partition)
        if held is not None and held.given.topic_id == topic_id and not (self._fenced and held.reading is None):
            return held.given
        return GivenPartition(partition, topic_id, self._epoch)

    def _give(self, given: Sequence[GivenPartition]) -> None:
        first, self.joined = not self.joined, True
        if self._holdings.apply(given) or first:
            self._wake()
