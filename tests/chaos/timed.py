"""Timed messages of a run: programs that delay and recall messages while brokers are killed, and their judge.

Each acknowledged message is visible exactly once and not before its time, or was recalled. Store and readers
share the clock of this machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ledgermq import RecallOutcome
from ledgermq.client.producing.delivery import Delivery
from ledgermq.errors import LedgerMQError, OutcomeUnknown, ResourceExhausted
from tests.chaos.workload import CLOSE_S_MAX, DELIVERY_S, PARTITIONS, REQUEST_S, TIMED, Workload
from tests.judges.violation import Violation
from tests.simulation.history import Outcome, Partition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ("main", "left")
FAR_UNTIL_S = 15.0
"""So long after the begin of the run messages are sent that wait in ranges."""
FAR_S = (95.0, 130.0)
OVERDUE_S_MAX = 90.0
LOOK_S = 1.0
RECALLED_SHARE = 0.2
BEFORE_US = 5_000_000
"""What was acknowledged so long before it is due has its place in the order of due times."""


@dataclass
class TimedMessage:
    """`acked_us`: when the acknowledgement came, by the wall clock; 0: never."""

    name: str
    partition: Partition
    due_us: int
    told: Outcome | None = None
    acked_us: int = 0
    recalls: list[RecallOutcome] = field(default_factory=list)
    recall_in_doubt: bool = False
    """Whether a call to recall it had no answer: it may have taken effect."""


class TimedSender:
    """Now and then a new producer, as a program that is started again. `messages` is shared by all."""

    def __init__(self, work: Workload, name: str, records_s: float, messages: list[TimedMessage]) -> None:
        self.name = name
        self._work = work
        self._records_s = records_s
        self._messages = messages
        self._random = random.Random(f"{name} {work.seed}")
        self._number = 0

    async def run(self) -> None:
        far_until_s = asyncio.get_running_loop().time() + FAR_UNTIL_S
        while not self._work.stopped.is_set():
            await self._session(far_until_s)

    async def _session(self, far_until_s: float) -> None:
        loop, r = asyncio.get_running_loop(), self._random
        over_s = loop.time() + r.choice((10, 60, 1000))
        async with self._work.connect() as client, asyncio.TaskGroup() as group:
            producer = client.producer(
                delivery_timeout_s=DELIVERY_S, request_timeout_s=REQUEST_S, linger_ms=r.choice((0, 20))
            )
            while not self._work.stopped.is_set() and loop.time() < over_s:
                topic, number = r.choice(TOPICS), r.randrange(PARTITIONS)
                count = r.choice((1, 5, 20))
                for _ in range(count):
                    ahead_s = r.choice((0.0, r.uniform(0, 3), r.uniform(0, 20)))
                    if loop.time() < far_until_s and r.random() < 0.3:
                        ahead_s = r.uniform(*FAR_S)
                    self._send(group, client, producer, (topic, number), ahead_s)
                await asyncio.sleep(r.expovariate(self._records_s / count))
            try:
                async with asyncio.timeout(CLOSE_S_MAX):
                    await producer.close()
            except TimeoutError:
                self._work.violations.append(Violation("stuck", f"{self.name}: close took more than {CLOSE_S_MAX} s"))
            except LedgerMQError as error:
                self._work.told("close", error)

    def _send(self, group: asyncio.TaskGroup, client: Any, producer: Any, partition: Partition, ahead_s: float) -> None:
        self._number += 1
        name = f"{TIMED}{self.name}.{self._number}"
        value = f"{name}|".encode() + self._random.randbytes(self._random.choice((0, 20, 2000)))
        message = TimedMessage(name, partition, _now_us() + round(ahead_s * 1e6))
        op = self._work.history.begin_produce(self.name, partition, (name,), ordered=False)
        self._work.sent_ms[name] = _now_us() // 1000
        topic, number = partition
        try:
            due = EPOCH + timedelta(microseconds=message.due_us)
            delivery = producer.send(topic, value, key=name, partition=number, deliver_at=due)
        except ResourceExhausted as error:
            self._work.history.end_produce(op, Outcome.FAIL, why=error.message)
            return
        self._messages.append(message)
        group.create_task(self._follow(client, op, message, delivery))

    async def _follow(self, client: Any, op: int, message: TimedMessage, delivery: Delivery) -> None:
        try:
            result = await delivery
        except LedgerMQError as error:
            self._work.told("a timed send", error)
            message.told = Outcome.INFO if isinstance(error, OutcomeUnknown) else Outcome.FAIL
            self._work.history.end_produce(op, message.told, why=error.message)
            return
        message.told, message.acked_us = Outcome.OK, _now_us()
        if self._random.random() >= RECALLED_SHARE:
            return
        left_s = max(0.0, (message.due_us - _now_us()) / 1e6)
        await asyncio.sleep(min(20.0, self._random.choice((0.0, left_s / 2, left_s, left_s + 1.0))))
        for _ in range(self._random.choice((1, 1, 2))):
            try:
                message.recalls.append(await client.recall(result.handle))
            except LedgerMQError as error:
                message.recall_in_doubt = True
                self._work.told("a recall", error)


async def until_delivered(work: Workload) -> list[Violation]:
    """In good health, with nothing more to come: until no timed message waits."""
    left = "an unknown number of messages"
    try:
        async with asyncio.timeout(FAR_S[1] + OVERDUE_S_MAX), work.connect() as client:
            while True:
                found = await work.insist("list of timed messages", lambda: client.list_delayed(messages_max=0))
                waiting = {bundle.bundle: bundle.messages for bundle in found.bundles if bundle.messages}
                if not waiting and not found.unanswered:
                    return []
                left = f"{waiting} of bundles, {dict(found.unanswered)} did not answer"
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return [Violation("hanging message", f"long after their due times there are still {left}")]


def judge_timed(
    messages: Iterable[TimedMessage],
    stored: Mapping[Partition, Mapping[int, str]],
    seen_us: Mapping[str, int],
) -> Iterator[Violation]:
    """`stored`: the records of all partitions at the end. `seen_us`: when a reader saw a message first."""
    messages = list(messages)
    places: defaultdict[str, list[tuple[Partition, int]]] = defaultdict(list)
    for partition, records in stored.items():
        for offset, name in records.items():
            if name.startswith(TIMED) and partition[0] in TOPICS:  # else a copy that a group has made
                places[name].append((partition, offset))
    for message in messages:
        found, told = places[message.name], message.recalls
        text = f"{message.name}, due {message.due_us}, told {message.told}, recalls {told}: at {found}"
        if len(found) > 1:
            yield Violation("duplicate", text)
        elif found and found[0][0] != message.partition:
            yield Violation("wrong place", text)
        elif found and message.told is Outcome.FAIL:
            yield Violation("failed write stored", text)
        if found and RecallOutcome.RECALLED in told:
            yield Violation("recalled and visible", text)
        elif not found and RecallOutcome.TOO_LATE in told:
            yield Violation("too late and not visible", text)
        elif not found and message.told is Outcome.OK and not told and not message.recall_in_doubt:
            yield Violation("lost message", text)
        if seen_us.get(message.name, message.due_us) < message.due_us:
            yield Violation("early", f"{text}, seen at {seen_us[message.name]}")
    yield from _judge_order(messages, places)


def _judge_order(
    messages: Iterable[TimedMessage], places: Mapping[str, list[tuple[Partition, int]]]
) -> Iterator[Violation]:
    early = [m for m in messages if m.acked_us and m.acked_us + BEFORE_US < m.due_us and len(places[m.name]) == 1]
    last: dict[Partition, TimedMessage] = {}
    for message in sorted(early, key=lambda message: places[message.name][0]):
        before = last.get(message.partition, message)
        if message.due_us < before.due_us:
            yield Violation(
                "out of order", f"{message.name}, due {message.due_us}, is behind {before.name}, due {before.due_us}"
            )
        last[message.partition] = message


def told_of(messages: Iterable[TimedMessage]) -> str:
    """Return what a run did, for its report."""
    messages = list(messages)
    recalls = Counter(str(outcome) for message in messages for outcome in message.recalls)
    acknowledged = sum(message.told is Outcome.OK for message in messages)
    return f"timed messages: {acknowledged} of {len(messages)} acknowledged, recalls {dict(sorted(recalls.items()))}"


def _now_us() -> int:
    return time.time_ns() // 1000
