"""A topic with `message.timestamp.after.max.ms`, and a producer whose records are dated in the future, in some runs
of level *cluster*. The clocks of brokers are wrong; the store's time alone counts (rule P11).

record of the future    a record was acknowledged that was further ahead than the topic allows
refused though in time  a record was refused that was not so far ahead, alone or beside one that was

Beside such a record, in the same call, come others that are not ahead: these have to be stored.
"""

from __future__ import annotations

import asyncio
import random

from ledgermq.client.producing.delivery import Delivery
from ledgermq.errors import InvalidRecord, LedgerMQError
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, Sender, fate_of
from tests.simulation.cluster_plan import ClusterPlan, cluster_plan_of
from tests.simulation.history import Outcome, Partition
from tests.simulation.network import Network
from tests.simulation.stamp_watch import stamped_of
from tests.simulation.world import World

TOPIC = "ahead"
AFTER_S = 60
AHEAD_S = (0, 0, 20, 40, 80, 3600)
ESTIMATE_S = 15
"""A broker estimates the store's time from below, by heartbeats that may be so old when it starts."""
WRONG_S = 1200
LINGER_MS = 20.0


def dated_ahead(seed: int) -> bool:
    """Return whether the run has a producer whose records are dated in the future."""
    return random.Random(f"dated ahead {seed}").random() < 0.3


def clocks_are_wrong(seed: int) -> bool:
    """Return whether the clocks of brokers are wrong from the beginning: S3 refuses clients whose clocks are."""
    return dated_ahead(seed) and not stamped_of(seed) and not cluster_plan_of(seed).is_s3


def future_settings(settings: dict[str, int | str]) -> dict[str, int | str]:
    """Return the settings of the topic; `settings`: those of another one."""
    others = {name: value for name, value in settings.items() if name != "message.timestamp.type"}
    return others | {"message.timestamp.after.max.ms": 1000 * AFTER_S}


class FutureSender(Sender):
    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str) -> None:
        super().__init__(world, network, plan, name, [TOPIC])

    async def work(self) -> None:
        producer = self.client.producer(
            linger_ms=LINGER_MS,
            delivery_timeout_s=self._plan.delivery_timeout_s,
            request_timeout_s=self._plan.request_timeout_s,
        )
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                number = self.random.randrange(PARTITIONS)
                for ahead_s in self.random.sample(AHEAD_S, self.random.choice((1, 3, 5))):
                    time_us = self._true_us() + 1_000_000 * ahead_s
                    value, partition = self.next_value(), self.partition(TOPIC, number)
                    op = self._world.history.begin_produce(self.name, partition, (value,), once=True, ordered=True)
                    delivery = producer.send(TOPIC, value, partition=number, timestamp=time_us)
                    group.create_task(self._judge(op, delivery, partition, time_us))
                await asyncio.sleep(self.random.expovariate(self._plan.records_s / 2))

    def _true_us(self) -> int:
        """Return the time of the store, which is never wrong."""
        return self._world.sources("true time").now_us()

    async def _judge(self, op: int, delivery: Delivery, partition: Partition, time_us: int) -> None:
        begun_us = self._true_us()
        try:
            result = await delivery
        except InvalidRecord as error:
            self._world.coverage.saw("a record of the future was refused")
            if time_us <= begun_us + 1_000_000 * (AFTER_S - ESTIMATE_S):
                self._report("refused though in time", time_us - begun_us, partition, error.message)
            self._world.history.end_produce(op, Outcome.FAIL, why=error.message)
        except LedgerMQError as error:
            self._world.history.end_produce(op, fate_of(error), why=error.message)
        else:
            ahead_us = time_us - self._true_us()
            if ahead_us > 1_000_000 * AFTER_S:
                self._report("record of the future", ahead_us, partition, f"stored at {result.offset}")
            self._world.coverage.saw("a record that is ahead was stored", ahead_us > 0)
            self._world.history.end_produce(op, Outcome.OK, result.offset)

    def _report(self, kind: str, ahead_us: int, partition: Partition, text: str) -> None:
        where = f"{TOPIC}-{partition[1]}: {ahead_us / 1e6:.1f} s ahead, {AFTER_S} s are allowed"
        self._world.violations.append(Violation(kind, f"{where}: {text}"))
