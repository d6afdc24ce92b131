"""Lose the answers to copies of unresolved half messages, in some runs of level *transactions*.

A copy that was stored, and whose answer is lost, is attempted again. Dice alone lose such an answer once in
hundreds of seeds: few half messages are unresolved, a copy takes one call, and the broker often makes it to
itself. A seed draws which share of these answers its brokers lose, to themselves and to others.
"""

from __future__ import annotations

import random
from typing import Any

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.naming import unresolved
from ledgermq_broker.broker import Broker
from tests.simulation.called_brokers import Called, stand_between
from tests.simulation.world import World

LOST_MAX = 20
"""Answers that one run loses, so that it comes to its end."""


def share_lost(seed: int) -> float:
    """Return the share of the answers to copies that the run loses."""
    return random.Random(f"lost answers to copies {seed}").choice((0.0, 0.5, 0.9))


class LostAnswers:
    def __init__(self, world: World) -> None:
        self.world = world
        self._share = share_lost(world.seed)
        self._random = random.Random(f"answers to copies {world.seed}")
        self._left = LOST_MAX

    def at(self, broker: Broker) -> None:
        """Lose answers to calls of this broker. Call it when the broker has started."""
        stand_between(broker, lambda api: _Losing(api, self))

    def loses(self, request: ProduceFrame) -> bool:
        if not self._left or not all(each.topic.endswith(unresolved.SUFFIX) for each in request.header.batches):
            return False
        lost = self._random.random() < self._share
        if lost:
            self._left -= 1
            self.world.coverage.saw("an answer to a copy of an unresolved half message was lost")
        return lost


class _Losing(Called):
    def __init__(self, api: Any, answers: LostAnswers) -> None:
        super().__init__(api)
        self._answers = answers

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        answer: pb.ProduceResponse = await self._api.produce_once(request)
        if self._answers.loses(request):
            raise Unavailable("the answer to a copy was lost", retry_after_ms=200)
        return answer
