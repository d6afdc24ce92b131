"""Delayed messages of the SDK on a cluster under random faults, by a seed, in virtual time.

In every run each acknowledged message comes once, not early, under its due time; one that was recalled
never comes, and one for which it was too late does.
"""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq.errors import OutcomeUnknown, RetriableError
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import cluster_of
from tests.e2e.test_client_chaos import PARTITIONS, SLOW, Chaos
from tests.stores.faulty import FaultyStore
from tests.virtual_time import EPOCH_US, virtual, virtual_sources

DELAY_S_MAX = 20.0
CALM_S = 60.0
"""After the last fault: all that is due has come by then."""
RECALLED, TOO_LATE, _ = ledgermq.RecallOutcome


class DelayedChaos(Chaos):
    """`recalls`: what calls about a message have answered; None: no answer."""

    def __init__(self, *of: object) -> None:
        super().__init__(*of)  # type: ignore[arg-type]
        self.recalls: dict[bytes, set[ledgermq.RecallOutcome | None]] = {}

    async def produce(self, name: str, until: asyncio.Event) -> None:
        producer = self.client.producer(
            linger_ms=self.random.choice([0, 5, 50]), batch_bytes_max=200, request_timeout_s=5
        )
        number = 0
        while not until.is_set():
            for _ in range(self.random.randint(1, 10)):
                value = f"{name}/{number}".encode()
                key = f"{name}/{number % 5}".encode()
                delay_s = self.random.uniform(0, DELAY_S_MAX)
                self.sent[value] = key, producer.send("t", value, key=key, delay=delay_s)
                number += 1
            await asyncio.sleep(self.random.uniform(0, 0.5))
            await self._recall_one()
        try:
            await producer.close()
        except OutcomeUnknown:
            pass  # looked at below, record by record
        await asyncio.sleep(CALM_S)

    async def _recall_one(self) -> None:
        """Recall one of the last messages, any other, or one that was recalled before."""
        values = self.random.choice([list(self.sent)[-40:], list(self.sent), list(self.recalls) or list(self.sent)])
        value = self.random.choice(values)
        _, delivery = self.sent[value]
        if not delivery.done() or delivery.exception() is not None:
            return
        outcomes = self.recalls.setdefault(value, set())
        try:
            outcomes.add(await self.client.recall(delivery.result().handle or ""))
        except RetriableError:
            outcomes.add(None)

    async def consume(self, until: asyncio.Event) -> None:
        async with self.client.consumer("t", request_timeout_s=200) as consumer:
            while not until.is_set() or consumer.positions() != await consumer.end_offsets():
                found = await consumer.fetch(100, timeout=1)
                now_us = EPOCH_US + round(asyncio.get_running_loop().time() * 1e6)
                for message in found:
                    assert message.timestamp_us is not None
                    assert message.timestamp_us <= now_us, "no message comes early"
                self.read += found

    def check(self) -> None:
        seen: dict[bytes | None, ledgermq.Message] = {}
        ends = [0] * PARTITIONS
        for message in self.read:
            assert message.offset == ends[message.partition], "offsets are dense"
            ends[message.partition] += 1
            assert message.value not in seen, "no message comes twice"
            seen[message.value] = message
        for value, (_, delivery) in self.sent.items():
            error = delivery.exception()
            outcomes = self.recalls.get(value, set())
            if error is not None:
                assert isinstance(error, OutcomeUnknown) or value not in seen, "what was refused does not come"
                continue
            assert not {RECALLED, TOO_LATE} <= outcomes, "an answer stays true"
            if RECALLED in outcomes:
                assert value not in seen, "what was recalled does not come"
            elif None not in outcomes or TOO_LATE in outcomes:
                assert value in seen, "what was acknowledged comes"
            if value in seen:
                result = delivery.result()
                assert (seen[value].partition, seen[value].timestamp_us) == (result.partition, result.timestamp_us)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_each_message_comes_once_unless_it_was_recalled_after_every_fault(seed: int) -> None:
    store = FaultyStore(MemoryStore("", virtual_sources(1000 + seed)), virtual_sources(2000 + seed), SLOW)
    async with cluster_of("a:1", "b:1", "c:1", store=store) as cluster:
        chaos = DelayedChaos(cluster, store, seed)
        async with asyncio.timeout(3600):
            await chaos.run()
        chaos.check()
        outcomes = set().union(*chaos.recalls.values())
        assert outcomes >= {RECALLED, TOO_LATE}
        assert len(chaos.sent) > 100
