"""Lose the answers to copies of unresolved half messages, in some runs of level *transactions*.

A copy that was stored, and whose answer is lost, is attempted again. Dice alone lose such an answer once in
hundreds of seeds, because few half messages are unresolved and a copy takes one call. A seed draws whether its
brokers lose these answers, and which share.
"""

from __future__ import annotations

import random
from typing import Any

from ledgermq.protocol import unresolved
from ledgermq.protocol.methods import PRODUCE_ONCE, Method
from tests.simulation.world import World


def share_lost(seed: int) -> float:
    """Return the share of the answers to copies that the run loses."""
    return random.Random(f"lost answers to copies {seed}").choice((0.0, 0.5, 0.9))


class LostAnswers:
    """None are lost once the world is healed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._share = share_lost(world.seed)
        self._random = random.Random(f"answers to copies {world.seed}")

    def loses(self, method: Method, request: Any) -> bool:
        if method is not PRODUCE_ONCE or not self._share or self._world.healed:
            return False
        if not all(batch.topic.endswith(unresolved.SUFFIX) for batch in request.header.batches):
            return False
        lost = self._random.random() < self._share
        if lost:
            self._world.coverage.saw("an answer to a copy of an unresolved half message was lost")
        return lost
