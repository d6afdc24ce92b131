"""Members of a group with `Retry.levels` in a simulated cluster, whose programs fail."""

from __future__ import annotations

import asyncio

from ledgermq import Retry
from ledgermq.client.groups.group_consumer import GroupConsumer
from ledgermq.client.groups.message import GroupMessage
from ledgermq.errors import LedgerMQError
from tests.judges.violation import Violation
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.expiry_watch import ExpiryWatch
from tests.simulation.failures_truth import (
    DEAD_LETTER,
    GROUP,
    SUCCESS,
    TOPIC,
    Calls,
    FailuresPlan,
    answer_of,
)
from tests.simulation.groups_clients import Done, GroupMember, GroupsPlan
from tests.simulation.network import Network
from tests.simulation.world import World

SLACK_S = 0.01
"""Due times are whole milliseconds, and timers may be one early."""
IMPATIENT_S = 0.3
"""Bound of a commit that is often too short, so that the outcome of a transaction is unknown."""


class FailingMember(GroupMember):
    """One incarnation of a member's process. Its programs answer in any order, some only much later."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        groups: GroupsPlan,
        expiry: ExpiryWatch,
        failures: FailuresPlan,
        calls: Calls,
        name: str,
        incarnation: int,
    ) -> None:
        super().__init__(world, network, plan, groups, expiry, Done(0), name, incarnation)
        self._failures = failures
        self._calls = calls

    async def _session(self) -> None:
        loop, world, r = asyncio.get_running_loop(), self._world, self.random
        over = loop.time() + r.choice((3.0, 10.0, 1000.0))
        consumer = self.client.consumer(
            TOPIC,
            group=GROUP,
            commit="acked",
            commit_interval_ms=r.choice((50, 200, 1000)),
            session_timeout_s=self._groups.session_timeout_s,
            max_poll_interval_s=self._groups.max_poll_interval_s,
            heartbeat_wait_s=0.5,
            revoke_wait_s=r.choice((0.0, 1.0)),
            close_timeout_s=3.0,
            request_timeout_s=r.choice((IMPATIENT_S, self._plan.request_timeout_s)),
            instance_id=self.name if self._groups.static else "",
            failed_held_max=r.choice((3, 10_000)),
            retry=Retry.levels(
                self._failures.attempts_max,
                self._failures.delays_s,
                expired="dead_letter" if self._failures.keeps_expired else "skip",
            ),
        )
        world.note(self.name, f"begins as {consumer.member_id[:8]}")
        todo: list[GroupMessage] = []
        try:
            while not self.stopped.is_set() and (loop.time() < over or world.healed):
                await self._work(consumer, todo)
        finally:
            await self._close(consumer)

    async def _work(self, consumer: GroupConsumer, todo: list[GroupMessage]) -> None:
        r = self.random
        try:
            messages = await consumer.fetch(r.choice((1, 5, 100)), timeout=r.choice((0.1, 1.0)))
        except LedgerMQError as error:
            self._world.coverage.saw(f"a failing member was told: {type(error).__name__}")
            self._world.judge_error(error)
            self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(0.3)
            return
        self._expiry.judge_handed_out(self.name, messages)
        for message in messages:
            self._judge_time(message)
        todo += messages
        r.shuffle(todo)
        for _ in range(len(todo) if self._world.healed else r.randint(0, len(todo))):
            self._answer_one(todo.pop())

    def _judge_time(self, message: GroupMessage) -> None:
        self._note_clocks()
        now_s = asyncio.get_running_loop().time()
        due_s = self._calls.due_s.get((message.origin, message.attempt), 0.0)
        if now_s < due_s - SLACK_S and not self._calls.clocks_jumped:
            text = f"{message.origin}, attempt {message.attempt}: at {now_s:.3f} s, due at {due_s:.3f} s"
            self._world.violations.append(Violation("called early", text))

    def _answer_one(self, message: GroupMessage) -> None:
        self._note_clocks()
        origin, attempt = message.origin, message.attempt
        answer = answer_of(self._failures, self._world.seed, origin, attempt)
        if answer.what == SUCCESS:
            self._calls.handled.add((origin, attempt))
            counts = message.ack()
        elif answer.what == DEAD_LETTER:
            counts = message.dead_letter("the program wants it so")
        else:
            delays_s = self._failures.delays_s
            delay_s = delays_s[min(attempt, len(delays_s)) - 1] if answer.delay_s is None else answer.delay_s
            # Delivered twice, it may be moved by either delivery: the first answer is the earliest time.
            self._calls.due_s.setdefault((origin, attempt + 1), asyncio.get_running_loop().time() + delay_s)
            counts = message.nack(answer.delay_s)
        self._world.coverage.saw(f"a failing program answered: {answer.what}" + ("" if counts else ", too late"))

    def _note_clocks(self) -> None:
        names = (f"f{number}" for number in range(self._failures.members))
        self._calls.clocks_jumped = self._calls.clocks_jumped or any(self._world.skew_us[name] for name in names)
