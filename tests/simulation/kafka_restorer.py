"""A program that looks, as one does that restores its state, while transactions of processors are being copied: in runs
of level *kafka* with processors and ambushes.

It begins when the end of a transaction was stored, and makes the store slow meanwhile: then what a bundle has appended
is stored only much later. Dice alone bring a takeover of a processor into this moment once in hundreds of seeds.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.kafka_members import Membership, Processor
from tests.simulation.kafka_plan import KafkaPlan
from tests.simulation.kafka_programs import OUTPUTS
from tests.simulation.kafka_reading import Fetching
from tests.simulation.kafka_truth import Restore

SLOW, SLOW_S = 0.5, 1.5
"""The share of requests that are slow meanwhile, and how slow at most."""


def restores(own: KafkaPlan) -> bool:
    return own.is_ambush and own.has("processors")


class KafkaRestorer(Fetching):
    """It is no member of the group, and only reads."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._group = Membership(self, Processor.group)

    async def work(self) -> None:
        while not self.stopped.is_set() and not self.world.healed:
            self.shared.ended.clear()
            await self.shared.ended.wait()
            weather = self.world.weather
            usual = weather.slow, weather.slow_s
            if not self.world.healed:
                weather.slow, weather.slow_s = SLOW, SLOW_S
            await self._restore()
            if not self.world.healed:  # which has ended all of it
                weather.slow, weather.slow_s = usual

    async def _restore(self) -> None:
        begins_at = await self._group.committed(range(PARTITIONS))
        asked = [(output, number) for output in OUTPUTS for number in range(PARTITIONS)]
        told = await asyncio.gather(*(self.end_of(place, isolation=0) for place in asked))
        ends = dict(zip(asked, told, strict=True))
        for number, at in begins_at.items():
            self.world.coverage.saw("a program looked while a transaction was being copied")
            self.shared.readers.restores.append(Restore(number, at, {each: ends[each, number] for each in OUTPUTS}))
