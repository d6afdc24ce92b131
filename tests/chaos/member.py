"""A member of a group, as a process that is killed, stopped and paused: `python -m
tests.chaos.member TARGET GROUP NAME SEED DIARY`.

Each line of its diary is one event: monotonic nanoseconds, the event, and its object. It is written
before the cluster can be notified (handled), or once the cluster has answered (committed). SIGTERM:
commit, leave, end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterable

import ledgermq
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.message import GroupMessage
from ledgermq.errors import GroupError, LedgerMQError
from tests.chaos.groups import GROUPS
from tests.chaos.workload import READ_S, REQUEST_S, name_of

JOINS = "joins"
SESSION_S = 6.0
POLL_S_MAX = 8.0
STALL_S = 11.0
"""Longer than a program may leave its consumer alone."""


class Diary:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, b"\n")  # the member before may have been killed within a line

    def write(self, *events: str) -> None:
        """All at once."""
        now_ns = time.monotonic_ns()
        os.write(self._file, "".join(f"{now_ns} {event}\n" for event in events).encode())

    def told(self, error: LedgerMQError) -> None:
        self.write(f"told {error.code} {error.message[:200]}".replace("\n", " "))

    def handled(self, messages: Iterable[GroupMessage]) -> None:
        self.write(*(f"handled {m.topic} {m.partition} {m.offset} {name_of(m.value)}" for m in messages))


class Member:
    def __init__(self, client: ledgermq.Client, group: str, name: str, seed: int, diary: Diary) -> None:
        self._client, self._group, self._name, self._diary = client, group, name, diary
        self._random = random.Random(f"{name} {seed} {os.getpid()}")
        self._mode = "auto"
        self._unfinished: list[GroupMessage] = []
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        while not self.stopped.is_set():
            await self._session()

    async def _session(self) -> None:
        """From joining to leaving."""
        over_s = asyncio.get_running_loop().time() + self._random.choice((5.0, 30.0, 1000.0))
        self._mode = self._random.choice(("auto", "acked", "manual"))
        self._unfinished = []
        consumer = self._client.consumer(
            GROUPS[self._group],
            group=self._group,
            commit=self._mode,
            commit_interval_ms=self._random.choice((200, 2000)),
            session_timeout_s=SESSION_S,
            heartbeat_wait_s=1.0,
            max_poll_interval_s=POLL_S_MAX,
            revoke_wait_s=self._random.choice((0.0, 3.0)),
            assignor=self._random.choice(("uniform", "sticky")),
            instance_id=self._name if self._name.endswith("0") else "",
            request_timeout_s=READ_S,
        )
        try:
            while not self.stopped.is_set() and asyncio.get_running_loop().time() < over_s:
                await self._turn(consumer)
        finally:
            try:
                await consumer.close()
            except LedgerMQError as error:
                self._diary.told(error)

    async def _turn(self, consumer: GroupConsumer) -> None:
        try:
            messages = await consumer.fetch(self._random.choice((1, 10, 500)), timeout=1.0)
            await self._handle(consumer, messages)
        except LedgerMQError as error:
            self._diary.told(error)
            await asyncio.sleep(0.3)
        if self._random.random() < 0.003:
            self._diary.write("stalled")
            await asyncio.sleep(STALL_S)

    async def _handle(self, consumer: GroupConsumer, messages: list[GroupMessage]) -> None:
        """auto: done with all of them. acked: with some, in any order, the others later. manual:
        commit some turns after.
        """
        if self._mode == "acked":
            self._unfinished += messages
            self._random.shuffle(self._unfinished)
            messages = [
                self._unfinished.pop()
                for _ in range(self._random.randint(len(self._unfinished) // 2, len(self._unfinished)))
            ]
        elif self._mode == "manual":
            self._unfinished += messages
        self._diary.handled(messages)
        if self._mode == "acked":
            for message in messages:
                if self._random.random() < 0.005:
                    message.nack(0.2)
                else:
                    message.ack()
        if self._random.random() < 0.2:
            await self._commit(consumer)

    async def _commit(self, consumer: GroupConsumer) -> None:
        """A refused message now belongs to another member; an unanswered commit is tried again."""
        try:
            committed = await consumer.commit(self._unfinished if self._mode == "manual" else None)
        except GroupError:
            self._forget()
            raise
        self._forget()
        self._diary.write(*(f"committed {at.topic} {at.partition} {offset}" for at, offset in committed.items()))

    def _forget(self) -> None:
        if self._mode == "manual":
            self._unfinished = []


async def main(target: str, group: str, name: str, seed: str, path: str) -> None:
    async with ledgermq.connect(target, timeout_s=20, attempt_timeout_s=REQUEST_S) as client:
        member = Member(client, group, name, int(seed), Diary(path))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stopped.set)
        print(JOINS, flush=True)
        await member.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
