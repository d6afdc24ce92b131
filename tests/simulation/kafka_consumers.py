"""Simulated members of groups with `group.protocol=consumer` (KIP-848): each has one epoch, takes what it is given when
it gets round to it, and says so with its next heartbeat; after an error it says everything again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import consumer_group_heartbeat_request as ch
from ledgermq_broker.kafka.wire.messages import CONSUMER_GROUP_HEARTBEAT
from tests.simulation.kafka_lines import LineBroke
from tests.simulation.kafka_members import Membership
from tests.simulation.kafka_programs import GROUPS, INPUT
from tests.simulation.kafka_reading import Fetching
from tests.simulation.kafka_truth import Reader

REBALANCE_MS = 60_000
JOINS, LEAVES = 0, -1
AMBUSHED, WAITS_S, JOINS_S, SLOW_S = 0.9, 15.0, 4.0, 3.0
"""In ambush: the share of such answers that are lost; how long a member waits with what it was given when it does not
reach its coordinator; how long at most it waits for its moment to join, and before it begins.
"""


class Member848(Fetching):
    """`epoch`: 0 while it is no member. `given`: what the last answer assigned to it. What it reads is what its
    `reader` holds. `is_told`: the coordinator has heard what that is. `says_all`: it may have missed an answer.
    """

    group = "consumers"

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._memberships = 0
        self.membership = Membership(self, self.group)
        self.is_lazy = self.name.endswith(("1", "3"))
        """As librdkafka, it says nothing of an assignment that it has already; Java does."""

    async def work(self) -> None:
        while not self.stopped.is_set():
            self._begin()
            await self._lie_in_wait()
            await self._membership()
            if not self.world.healed:
                await self.pause()

    async def _lie_in_wait(self) -> None:
        """In ambush, join when another member has been given what it has not begun with: part of that is withdrawn."""
        over_s = self.now_s() + self.random.uniform(0.0, JOINS_S)
        while self.own.withdraws and not self.world.healed and self.now_s() < over_s:
            if self.shared.about_to_begin - {self.name}:
                self.world.coverage.saw("a consumer joined when another one was about to begin")
                break
            await asyncio.sleep(0.1)

    def _begin(self) -> None:
        self._memberships += 1
        self.membership.id = f"{self.label}+{self._memberships}"
        self.reader = Reader(self.membership.id)
        self._lose_all()

    def _lose_all(self) -> None:
        self.shared.readers.let_go(self.reader, self.reader.holds)
        self.reader.member_until_s = 0.0
        self.positions = {}
        self.epoch, self.is_told, self.says_all, self.takes_at_s = 0, False, False, 0.0
        self._waits = True
        self.given: set[int] | None = None
        self.shared.about_to_begin.discard(self.name)

    async def _membership(self) -> None:
        over_s = self.now_s() + self.random.choice((1.5, 4.0) if self.own.withdraws else (1.5, 4.0, 12.0, 1000.0))
        while not self.stopped.is_set() and (self.now_s() < over_s or self.world.healed or self._lingers()):
            await self._beat()
            await self._take()
            await self._read()
        if self.stopped.is_set() or self.random.random() < 0.6:
            await self._leave()
        else:
            self.shared.readers.let_go(self.reader, self.reader.holds)  # it is gone, as after a crash

    def _lingers(self) -> bool:
        """In ambush a member goes on until it has begun with what it was given."""
        return self.own.withdraws and self.name in self.shared.about_to_begin

    # Heartbeats

    def _request(self, epoch: int) -> ch.ConsumerGroupHeartbeatRequest:
        joins = epoch == JOINS
        says_all = joins or self.says_all
        request = ch.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.membership.id, member_epoch=epoch, topic_partitions=None
        )
        request.rebalance_timeout_ms, request.subscribed_topic_names = -1, None
        if says_all:
            request.rebalance_timeout_ms, request.subscribed_topic_names = REBALANCE_MS, [INPUT]
        if joins:
            request.topic_partitions = []
        elif epoch > 0 and (says_all or not self.is_told):
            [topic_id] = [each for each, name in sorted(self.topics_by_id.items()) if name == INPUT]
            owned = sorted(self.reader.holds)
            request.topic_partitions = [ch.TopicPartitions(topic_id, owned)] if owned else []
        return request

    async def _beat(self) -> None:
        await self.leader((INPUT, 0))  # so that it knows the topic's id
        request, sent_s = self._request(self.epoch), self.now_s()
        try:
            answer = await self.at_coordinator(GROUPS, self.group, CONSUMER_GROUP_HEARTBEAT, 1, request, tries=1)
            if self._loses(answer):
                raise LineBroke
        except LineBroke:
            self.says_all = self.epoch > 0
            if self.own.is_ambush and self._waits and not self.world.healed:
                self.takes_at_s = self.now_s() + WAITS_S
            await self.pause()
            return
        if answer.error_code:
            self.world.coverage.saw(f"a consumer was told: {Code(answer.error_code).name}")
            await self._former(answer.error_code)
            return
        self.reader.member_until_s = sent_s + self.own.session_ms / 1000
        self.epoch, self.membership.generation = answer.member_epoch, answer.member_epoch
        if request.topic_partitions is not None and request.member_epoch != JOINS:
            self.is_told = True
        self.says_all = False
        if answer.assignment is not None:
            self._note_given({n for topic in answer.assignment.topic_partitions for n in topic.partitions})

    def _loses(self, answer: Any) -> bool:
        """Lose some answers; in ambush most of those that take back what the member is about to begin with, which it
        then begins with at once.
        """
        if self.world.healed or answer.error_code:
            return False
        share = self.own.loses
        if self.own.is_ambush and self.given is not None and answer.assignment is not None:
            about_to_take = self.given - set(self.reader.holds)
            if about_to_take - {n for topic in answer.assignment.topic_partitions for n in topic.partitions}:
                self.world.coverage.saw("a withdrawal came before a consumer had begun")
                share, self.takes_at_s = AMBUSHED, min(self.takes_at_s, self.now_s() + 0.5)
                self._waits = False
        lost = self.random.random() < share
        self.world.coverage.saw("an answer to a heartbeat was lost", lost)
        return lost

    def _note_given(self, given: set[int]) -> None:
        self.is_told = self.is_told and (self.is_lazy or given != set(self.reader.holds))
        if given != self.given:
            self._waits = True
            slow_s = max(self.own.slow_s, SLOW_S) if self.own.withdraws else self.own.slow_s
            self.takes_at_s = self.now_s() + self.random.uniform(0.0, slow_s)
        self.given = given
        if given - set(self.reader.holds):
            self.shared.about_to_begin.add(self.name)
        self.world.coverage.saw("a consumer was given partitions")

    async def _former(self, code: int) -> None:
        """It is no member any more, or has to join again; now and then it commits once more before it does."""
        readers, epoch = self.shared.readers, self.epoch
        if code in (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID):
            if epoch and self.positions and self.random.random() < self.own.stale and not self.world.healed:
                begun = [readers.committing(self.reader.holds[number], at) for number, at in self.positions.items()]
                code = await self.membership.commit(self.positions, epoch)
                self.world.coverage.saw(f"a commit of a former member was answered: {Code(code).name}")
                for commit in begun if not code else ():
                    readers.committed(commit)
            self._lose_all()
        await self.pause()

    async def _leave(self) -> None:
        await self._commit()
        self.shared.readers.let_go(self.reader, self.reader.holds)
        if self.epoch:
            request = self._request(LEAVES)
            try:
                await self.at_coordinator(GROUPS, self.group, CONSUMER_GROUP_HEARTBEAT, 1, request, tries=3)
            except LineBroke:
                pass

    # Partitions

    async def _take(self) -> None:
        """Begin with what was given, and let the rest go."""
        if self.given is None or self.given == set(self.reader.holds) or self.now_s() < self.takes_at_s:
            return
        given = self.given
        if set(self.reader.holds) - given:
            await self._commit()
        readers = self.shared.readers
        readers.let_go(self.reader, sorted(set(self.reader.holds) - given))
        for number in sorted(given - set(self.reader.holds)):
            readers.take(self.reader, self.group, number, self.now_s(), alone=True)
            self.world.coverage.saw("a consumer has begun with a partition")
        self.shared.about_to_begin.discard(self.name)
        self.positions = {number: at for number, at in self.positions.items() if number in given}
        self.is_told = False

    async def _read(self) -> None:
        readers = self.shared.readers
        new = sorted(set(self.reader.holds) - set(self.positions))
        if new:
            found = await self.membership.committed(new)
            self.positions |= {number: readers.begin(self.reader.holds[number], at) for number, at in found.items()}
        done = readers.done[self.group]
        for number, records in (await self.fetch(self.positions, 0.2)).items():
            done[number].update(offset for offset, _ in records)
            self.positions[number] = records[-1][0] + 1
        if self.random.random() < 0.3:
            await self._commit()

    async def _commit(self) -> None:
        """Commit; what is refused is committed, or lost, after the next heartbeats."""
        if not self.positions or not self.epoch:
            return
        readers = self.shared.readers
        begun = {number: readers.committing(self.reader.holds[number], at) for number, at in self.positions.items()}
        codes = await self.membership.commit_each(self.positions)
        for number, code in codes.items():
            if code:
                self.world.coverage.saw(f"a commit of a consumer was answered: {Code(code).name}")
            else:
                self.world.coverage.saw("a consumer has committed")
                readers.committed(begun[number])
