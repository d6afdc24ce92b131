"""A topic with a backlog quota, in some runs of level cluster: a group that stands still, and now and then catches up.

dropped                 under a policy that holds or refuses records, a log start moved
evicted too much        an eviction left less than nine tenths of the quota behind the new log start
above the quota         in a healthy cluster, a record was stored, or a backlog was left, later than a check allows
held without a backlog  in a healthy cluster, a group that has read everything still keeps producers from storing

Bytes are told from the segments and the Parquet files as they were put. A record that is in both counts by
whichever is in favor of the broker, because it cannot be told by which of them the broker measured it.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator

from ledgermq.client.client import Client
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient, fate_of
from tests.simulation.history import Outcome
from tests.simulation.watch import parquet_name
from tests.simulation.world import World

TOPIC, GROUP = "bounded", "behind"
HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
QUOTA_BYTES = 8192
LEFT_SHARE = 0.9
SLACK_S = 15.0
"""Two checks of 5 seconds, a question of 3 seconds at most, and what was under way."""
PRESSED_S = 30.0
SEND_EVERY_S = 0.5


def quota_policy_of(seed: int) -> str:
    """Return the policy of the topic with a quota; "": the run has none."""
    return random.Random(f"a backlog quota {seed}").choice(("", "", "", HOLD, REFUSE, EVICT))


def quota_settings(policy: str) -> dict[str, str | int]:
    return {"backlog.quota.bytes": QUOTA_BYTES, "backlog.quota.policy": policy, "parquet.target.bytes": 65536}


class Follower(SimulatedClient):
    """Commits for the group, outside of membership: the beginning first, and now and then all, or a part."""

    async def work(self) -> None:
        topic_id = self._world.topic_ids[TOPIC]
        committed = dict.fromkeys(range(PARTITIONS), 0)
        while not self.stopped.is_set():
            offsets = {TopicPartition(TOPIC, number): (topic_id, offset) for number, offset in committed.items()}
            try:
                await self.client.groups.commit(GROUP, offsets)
                await asyncio.sleep(self.random.expovariate(0.1))
                end = (await self.client.list_offsets(TOPIC, "latest"))[number := self.random.randrange(PARTITIONS)]
            except LedgerMQError as error:
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
                await asyncio.sleep(0.5)
            else:
                committed[number] = self.random.randint(committed[number], max(end, committed[number]))


class QuotaWatch:
    """What is stored of the topic, and what evictions left of it."""

    def __init__(self, world: World, policy: str) -> None:
        self._world = world
        self._policy = policy
        self._log_starts: dict[int, int] = {}

    def on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        """Judge each move of a log start."""
        topic_id = self._world.topic_ids.get(TOPIC)
        for part in checkpoint.partitions:
            if topic_id is None or part.topic_id != topic_id:
                continue
            if part.log_start > self._log_starts.get(part.partition, 0):
                self._log_starts[part.partition] = part.log_start
                self._judge_move(checkpoint.bundle, part.partition, part.log_start)

    def _judge_move(self, bundle: int, partition: int, start: int) -> None:
        if self._policy != EVICT:
            self.report("dropped", f"{TOPIC}-{partition} begins at {start}, by policy {self._policy}")
            return
        self._world.coverage.saw("a backlog was evicted")
        sizes = self.sizes(bundle, partition, max)
        left = sum(size for offset, size in sizes.items() if offset >= start)
        if left + max(sizes.values()) < LEFT_SHARE * QUOTA_BYTES:  # the broker counts whole records
            self.report("evicted too much", f"{TOPIC}-{partition} begins at {start}: {left:.0f} bytes are left")

    def sizes(self, bundle: int, partition: int, choose: Callable[[list[float]], float]) -> dict[int, float]:
        """Return the bytes of each record that was ever stored; `choose` decides between its places."""
        key = (self._world.topic_ids[TOPIC], partition)
        found: defaultdict[int, list[float]] = defaultdict(list)
        for entry, _ in self._entries(bundle, partition):
            for offset in range(entry.base_offset, entry.base_offset + entry.record_count):
                found[offset].append(entry.length / entry.record_count)
        for object_key, data in self._world.store.first.items():
            name = parquet_name(object_key)
            if name is not None and (name.topic_id, name.partition) == key:
                for offset in range(name.first_offset, name.last_offset + 1):
                    found[offset].append(len(data) / (name.last_offset + 1 - name.first_offset))
        return {offset: choose(sizes) for offset, sizes in found.items()}

    def _entries(self, bundle: int, partition: int) -> Iterator[tuple[fmt.BatchEntry, int]]:
        """Yield the batches in the ledger, and when each was put."""
        store, topic_id = self._world.store, self._world.topic_ids[TOPIC]
        for segment in store.history(bundle):
            for entry in segment.index.batches if segment.valid else ():
                if (entry.topic_id, entry.partition) == (topic_id, partition):
                    yield entry, store.first_us[keys.segment(bundle, segment.slot)]

    async def press(self, client: Client) -> None:
        """In a healthy cluster: let the group stand still while a producer sends on, then let it catch up."""
        bundle = (await client.describe_topic(TOPIC)).partitions[0].bundle
        committed = await self._catch_up(client)
        if self._policy != EVICT:
            await self._probe(client, "before")
        producer = client.producer(linger_ms=0, delivery_timeout_s=10.0)
        async with asyncio.TaskGroup() as sends:
            for number in range(round(PRESSED_S / SEND_EVERY_S)):
                sends.create_task(self._send(producer, f"pressed.{number}", ordered=True))
                await asyncio.sleep(SEND_EVERY_S)
        await producer.close()
        if self._policy == EVICT:
            await asyncio.sleep(SLACK_S)
            self._judge_left(bundle)
            return
        self._judge_stored(bundle, committed)
        await self._catch_up(client)
        await self._probe(client, "after")

    async def _catch_up(self, client: Client) -> int:
        """Commit the end of the first partition; return it."""
        while True:
            try:
                end = (await client.list_offsets(TOPIC, "latest"))[0]
                offsets = {TopicPartition(TOPIC, 0): (self._world.topic_ids[TOPIC], end)}
                if not await client.groups.commit(GROUP, offsets):
                    return end
            except LedgerMQError as error:
                self._world.note("quota", f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(0.5)

    async def _probe(self, client: Client, when: str) -> None:
        """Send until a record is stored."""
        loop = asyncio.get_running_loop()
        end_s, count = loop.time() + SLACK_S, 0
        while loop.time() < end_s:
            producer = client.producer(linger_ms=0, delivery_timeout_s=SLACK_S)
            is_stored = await self._send(producer, f"probe.{when}.{count}", ordered=False)
            await producer.close()
            if is_stored:
                return
            count += 1
            await asyncio.sleep(0.5)
        self.report("held without a backlog", f"{TOPIC}-0 took no record for {SLACK_S:.0f} s, {when} it was pressed")

    async def _send(self, producer: Producer, value: str, *, ordered: bool) -> bool:
        history, at = self._world.history, (f"{TOPIC}#{self._world.topic_ids[TOPIC]}", 0)
        op = history.begin_produce(value.split(".", maxsplit=1)[0], at, (value,), ordered=ordered)
        try:
            result = await producer.send(TOPIC, value, partition=0)
        except LedgerMQError as error:
            self._world.coverage.saw(f"beside a backlog a send failed: {type(error).__name__}")
            history.end_produce(op, fate_of(error), why=error.message)
            return False
        history.end_produce(op, Outcome.OK, result.offset)
        return True

    def _judge_stored(self, bundle: int, committed: int) -> None:
        behind = 0.0
        full_us: int | None = None
        sizes = self.sizes(bundle, 0, min)
        for entry, put_us in self._entries(bundle, 0):
            if entry.base_offset < committed:
                continue
            if full_us is not None and put_us > full_us + SLACK_S * 1e6:
                late_s = (put_us - full_us) / 1e6
                self.report("above the quota", f"{TOPIC}-0: {entry.base_offset} was stored {late_s:.1f} s too late")
                return
            behind += sum(sizes[entry.base_offset + number] for number in range(entry.record_count))
            full_us = put_us if full_us is None and behind > QUOTA_BYTES else full_us
        self._world.coverage.saw(f"a backlog was above its quota: {self._policy}", full_us is not None)

    def _judge_left(self, bundle: int) -> None:
        start = self._log_starts.get(0, 0)
        left = sum(size for offset, size in self.sizes(bundle, 0, min).items() if offset >= start)
        if left > QUOTA_BYTES:
            self.report("above the quota", f"{TOPIC}-0: {left:.0f} bytes are left")

    def report(self, kind: str, text: str) -> None:
        self._world.note("quota", f"{kind}: {text}")
        self._world.violations.append(Violation(kind, text))
