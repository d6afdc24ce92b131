"""Simulated members of a share group (KIP-932), as Java's client is one: some messages are never accepted by them, and
some are rejected.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from zlib import crc32

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import share_acknowledge_request as sa
from ledgermq_broker.kafka.wire.generated import share_fetch_request as sf
from ledgermq_broker.kafka.wire.generated import share_group_heartbeat_request as sh
from ledgermq_broker.kafka.wire.messages import SHARE_ACKNOWLEDGE, SHARE_FETCH, SHARE_GROUP_HEARTBEAT
from tests.broker.kafka_sharers import ACCEPT, REJECT, RELEASE, Got, got_of
from tests.simulation.kafka_lines import KafkaLine, LineBroke
from tests.simulation.kafka_programs import GROUPS, INPUT, KafkaProgram

GROUP = "sharers"
LETTERS = f"{GROUP}.dlq"
LEAVES = -1
LOCK_S = 30.0
POISONED = 11
"""One message in so many is released at each delivery."""


def is_poisoned(value: bytes | None) -> bool:
    return crc32(value or b"") % POISONED == 0


class KafkaSharer(KafkaProgram):
    """`epoch`: as a member. `sessions`: the next epoch of the session on each line."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._memberships = 0
        self.id, self.epoch = "", 0
        self.topic_id: bytes | None = None
        self.numbers: list[int] = []
        self.sessions: dict[KafkaLine, int] = {}

    async def work(self) -> None:
        while not self.stopped.is_set():
            self._memberships += 1
            self.id, self.epoch, self.topic_id = f"{self.label}+{self._memberships}", 0, None
            await self._be_a_member(self.now_s() + self.random.choice((2.0, 8.0, 1000.0)))
            if self.random.random() < 0.5:
                await self._beat(member_epoch=LEAVES)
            self._drop()

    async def _be_a_member(self, until_s: float) -> None:
        beats_at_s = 0.0
        while not self.stopped.is_set() and (self.now_s() < until_s or self.world.healed):
            if self.now_s() >= beats_at_s:
                if not await self._beat():
                    await self.pause()
                    continue
                beats_at_s = self.now_s() + 2.0
            await self._turn()

    async def _beat(self, **more: Any) -> bool:
        """Send a heartbeat; return whether it is a member."""
        request = sh.ShareGroupHeartbeatRequest(
            **{
                "group_id": GROUP,
                "member_id": self.id,
                "member_epoch": self.epoch,
                "subscribed_topic_names": None if self.topic_id else [INPUT],
                **more,
            }
        )
        try:
            answer = await self.at_coordinator(GROUPS, GROUP, SHARE_GROUP_HEARTBEAT, 1, request, tries=3)
        except LineBroke:
            self.topic_id = None  # it may have missed an answer, and says everything
            return False
        if answer.error_code:
            self.world.coverage.saw(f"a share member was told: {Code(answer.error_code).name}")
            self.epoch, self.topic_id = 0, None
            return False
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            for topic in answer.assignment.topic_partitions:
                self.topic_id, self.numbers = topic.topic_id, list(topic.partitions)
        return self.topic_id is not None

    async def _turn(self) -> None:
        """Lease some messages, and say something about each."""
        broker = await self.leader((INPUT, self.random.choice(self.numbers)))
        mine = [number for number in self.numbers if await self.leader((INPUT, number)) == broker]
        line = self.line(broker, "share")
        asked_s = self.now_s()
        request = sf.ShareFetchRequest(
            group_id=GROUP,
            member_id=self.id,
            share_session_epoch=self._next(line),
            max_wait_ms=300,
            min_bytes=1,
            max_bytes=self.random.choice((1000, 50_000_000)),
            max_records=self.random.randint(1, 12),
            batch_size=12,
            topics=[sf.FetchTopic(self.topic_id, [sf.FetchPartition(number) for number in mine])],
        )
        try:
            answer = await line.answer(SHARE_FETCH, 1, line.send(SHARE_FETCH, 1, request), self.timeout_s + 15.0)
        except LineBroke:
            answer = None
        parts = [] if answer is None else [part for topic in answer.responses for part in topic.partitions]
        if answer is None or answer.error_code or any(part.error_code for part in parts):
            self._lose(line, mine)
            await self.pause()
            return
        found = [got for part in parts for got in got_of(part)]
        for got in found:
            self.world.coverage.saw("a share member was given a message")
            self.world.coverage.saw("a message came again to a share member", int(got.deliveries > 1))
            self.shared.shares.granted(got, asked_s)
        if found and self.random.random() < 0.03 and not self.world.healed:
            await self._sleep(LOCK_S * self.random.choice((0.5, 1.2)))
        for got in found:
            if not line.is_over:
                await self._say(line, got)

    async def _sleep(self, seconds: float) -> None:
        until_s = self.now_s() + seconds
        while self.now_s() < until_s and not self.world.healed:
            await self.pause()

    async def _say(self, line: KafkaLine, got: Got) -> None:
        truth, place = self.shared.shares, (got.partition, got.offset)
        chance = 1.0 if self.world.healed else self.random.random()
        if chance < 0.05:
            return  # nothing is said: its lock ends with its time, or with the connection
        word = RELEASE if chance < 0.1 or is_poisoned(got.value) else REJECT if chance < 0.13 else ACCEPT
        batch = sa.AcknowledgementBatch(got.offset, got.offset, [word])
        topic = sa.AcknowledgeTopic(self.topic_id, [sa.AcknowledgePartition(got.partition, [batch])])
        request = sa.ShareAcknowledgeRequest(GROUP, self.id, self._next(line), [topic])
        if word == ACCEPT:
            truth.unsure.add(place)
        try:
            answer = await line.answer(SHARE_ACKNOWLEDGE, 1, line.send(SHARE_ACKNOWLEDGE, 1, request), self.timeout_s)
        except LineBroke:
            return
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        self.world.coverage.saw(f"a word of a share member was answered: {Code(code).name}")
        if code == Code.NONE and word == ACCEPT:
            truth.counts(place, self.now_s())
        if code == Code.NONE and word == REJECT:
            self.world.coverage.saw("a share member rejected a message")
            truth.told_s.setdefault(place, self.now_s())
        if answer.error_code:
            self._lose(line, [])

    def _next(self, line: KafkaLine) -> int:
        epoch = self.sessions.get(line, 0)
        self.sessions[line] = epoch + 1
        return epoch

    def _lose(self, line: KafkaLine, numbers: Collection[int]) -> None:
        self.sessions.pop(line, None)
        line.close()
        for number in numbers:
            self.forget_leader((INPUT, number))

    def _drop(self) -> None:
        for line in list(self.sessions):
            self._lose(line, [])
