"""Callers of a simulated queue group that keep no member: they lease by one call, and answer by handles that any of
them may have, repeat words as after a lost answer, and answer late.

Only runs with `has_callers` have them, and they draw from streams of their own. In those of `has_callers_only` the
group has no members, and its callers bury often, also late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgermq.client.queues.leases.answering import AnswerWord, LeaseAnswer, LeaseResult
from ledgermq.client.queues.leases.handles import LeaseHandle
from ledgermq.client.queues.leases.leasing import LeasedMessage
from ledgermq.client.queues.queue import Queue
from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.simulation.cluster_clients import SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.hostile import is_hostile
from tests.simulation.network import Network
from tests.simulation.queues_truth import QueuesTruth, Said, write_down
from tests.simulation.world import World

KEPT_MAX = 50
FIRST_SEED = 30
"""Seeds below it were recorded for mutants before there were such callers; they stay as they were."""


def has_callers(seed: int) -> bool:
    return seed >= FIRST_SEED and not is_hostile(seed) and random.Random(f"lease callers {seed}").random() < 0.7


FIRST_SEED_ALONE = 40
"""As `FIRST_SEED`, for `has_callers_only`."""


def has_callers_only(seed: int) -> bool:
    return seed >= FIRST_SEED_ALONE and has_callers(seed) and random.Random(f"callers only {seed}").random() < 0.5


@dataclass
class Handles:
    """Handles with the word that was said last about each: "" if none was."""

    kept: list[tuple[str, AnswerWord | str]] = field(default_factory=list)

    def keep(self, handle: str, word: AnswerWord | str) -> None:
        self.kept.append((handle, word))
        del self.kept[:-KEPT_MAX]


class LeaseCaller(SimulatedClient):
    """One incarnation of a process. `handles`: of all callers of the run."""

    def __init__(
        self,
        world: World,
        network: Network,
        plan: ClusterPlan,
        group: str,
        topic: str,
        lease_s: float,
        wanted: str,
        truth: QueuesTruth,
        handles: Handles,
        name: str,
        incarnation: int,
    ) -> None:
        super().__init__(world, network, plan, name)
        self.random = random.Random(f"lease caller {name} {incarnation} {world.seed}")
        self.turns = 0
        self._buries = has_callers_only(world.seed)
        self._group, self._topic, self._lease_s, self._filter = group, topic, lease_s, wanted
        self._truth = truth
        self._handles = handles

    async def work(self) -> None:
        now_s, saw = self._world.loop.time, self._world.coverage.saw
        leasing, make = self.client._leasing, self.client._leasing._make

        def made(*given: Any) -> Queue:
            member = make(*given)
            write_down(member, self._truth, now_s, saw)
            return member

        leasing._make = made
        write_down_answers(self.client.queues._answering, self._truth, now_s)
        while not self.stopped.is_set():
            try:
                await self._turn()
                self.turns += 1
            except LedgerMQError as error:
                self._world.judge_error(error)
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
                await asyncio.sleep(0.2)

    async def _turn(self) -> None:
        r = self.random
        found = await self.client.queues.lease(
            self._topic,
            self._group,
            max_records=r.choice((1, 5, 20)),
            wait=r.uniform(0.1, 2.0),
            lease_s=self._lease_s,
            attempts_max=60,
            filter=self._filter,
        )
        answers = [self._decided(each) for each in found]
        await self._say([each for each in answers if each is not None])
        if self._handles.kept and r.random() < 0.7:
            kept = r.sample(self._handles.kept, min(len(self._handles.kept), 5))
            if r.random() < 0.5:
                await asyncio.sleep(r.choice((0.1, 1.0, self._lease_s)))
            await self._say([LeaseAnswer(handle, self._later(word)) for handle, word in kept])  # type: ignore[arg-type]

    def _decided(self, leased: LeasedMessage) -> LeaseAnswer | None:
        message, chance = leased.message, self.random.random()
        self._truth.given[message.partition, message.offset] = (message.value or b"").decode()
        self._world.coverage.saw("a message was leased by a call")
        if self._buries and not self._world.healed and self.random.random() < 0.5:
            if self.random.random() < 0.5:  # later, and perhaps too late
                self._handles.keep(leased.handle, "")
                return None
            return LeaseAnswer(leased.handle, "dead_letter", error="it is not wanted")
        if self._world.healed or chance < 0.6:
            return LeaseAnswer(leased.handle)
        if chance < 0.7:
            self._handles.keep(leased.handle, "")
            return None
        if chance < 0.8:
            return LeaseAnswer(leased.handle, "dead_letter", error="it is not wanted")
        return LeaseAnswer(leased.handle, self.random.choice(("nack", "return")))

    def _later(self, word: AnswerWord | str) -> AnswerWord | str:
        """Repeat what was said, mostly."""
        if word and self.random.random() < 0.8:
            return word
        return "ack" if self._world.healed else self.random.choice(("ack", "nack", "return", "dead_letter"))

    async def _say(self, answers: Sequence[LeaseAnswer]) -> None:
        if not answers:
            return
        for answer in answers:
            self._handles.keep(answer.handle, answer.word)
        for answer, result in zip(answers, await self.client.queues.answer(answers), strict=True):
            told = "error" if result.error is not None else result.counts
            self._world.coverage.saw(f"{answer.word} by a handle was answered: {told}")


def write_down_answers(answering: Any, truth: QueuesTruth, now_s: Callable[[], float]) -> None:
    """Let a client write down each word that it says by handles, as brokers are told it."""
    say = answering._say_of

    async def said(
        results: list[LeaseResult], handles: Sequence[LeaseHandle], which: Sequence[int], word: Callable[[int], Any]
    ) -> None:
        begun_s, about = now_s(), {}
        for at in which:
            named = handles[at]
            lease = named.lease
            about[at] = Said(named.at.partition, named.offset, lease.epoch, lease.number, word(at)[0], begun_s)
        truth.said += about.values()
        await say(results, handles, which, word)
        for at, one in about.items():
            one.told_s, one.counts = now_s(), results[at].error is None and results[at].counts
            if one.word == pb.RENEW and one.counts:
                truth.renewed.add((one.partition, one.offset))

    answering._say_of = said
