"""A steady load on one broker in virtual time: what it asks of a distant store, and when it
answers.

The load is that of row P5: runs of 64 records of 1000 B to one partition after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.distant import DISTANCES, FAR
from bench.percentiles import at
from bench.runs import RUN_RECORDS, VALUE_BYTES, send_runs
from bench.sizing.distant_brokers import DistantBrokers
from ledgermq.client.producing.producer import Producer
from ledgermq_broker.settings.by_store import HEARTBEAT_MS
from ledgermq_ledger.object_store.prices import S3_PRICES
from tests.simulation.loop import SimulatedLoop, run_simulated

TOPIC = "load"
SETTLING_S = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one broker."""

    megabytes_per_s: float
    partitions: int
    bundles: int
    seconds: float
    distance: str = FAR
    run_records: int = RUN_RECORDS
    heartbeat_ms: int = HEARTBEAT_MS["s3"]


@dataclass(frozen=True, slots=True)
class Observed:
    """`requests_per_s`: by operation of the store contract, every attempt.

    Latencies are from when a run of records was due until its acknowledgement.
    """

    acknowledged_ms_p50: float
    acknowledged_ms_p99: float
    puts_per_s: float
    put_megabytes: float
    requests_per_s: Mapping[str, float]

    @property
    def dollars_per_s(self) -> float:
        """Return dollars per second at the list prices of S3 Standard."""
        return sum(S3_PRICES.of(name) * rate for name, rate in self.requests_per_s.items())

    @property
    def segment_dollars_per_s(self) -> float:
        return S3_PRICES.of("put_if_absent") * self.puts_per_s


def observe(load: Load) -> Observed:
    """Observe the load; the same load gives the same answer each time."""
    return run_simulated(lambda loop: _Observation(loop, load).run())


class _Observation:
    def __init__(self, loop: SimulatedLoop, load: Load) -> None:
        self._loop = loop
        self._broker = DistantBrokers(loop, load.bundles, DISTANCES[load.distance], load.heartbeat_ms)
        self._load = load

    async def run(self) -> Observed:
        await self._broker.start()
        return await self._broker.process("client").spawn(self._produce())

    async def _produce(self) -> Observed:
        await self._broker.create_topic(TOPIC, self._load.partitions)
        client = self._broker.client("client")
        async with client.producer(compression="none") as producer:
            await self._send(producer, SETTLING_S)  # sessions are open, and queues have their steady length
            before, begun_s = self._broker.meter.by_operation(), self._loop.time()
            found = sorted(await self._send(producer, self._load.seconds))
            seconds = self._loop.time() - begun_s
        await client.close()
        requests = {
            name: (count - before.get(name, 0)) / seconds for name, count in self._broker.meter.by_operation().items()
        }
        puts, sent_bytes = requests["put_if_absent"], len(found) * self._load.run_records * VALUE_BYTES
        return Observed(
            1000 * at(found, 0.5), 1000 * at(found, 0.99), puts, sent_bytes / 1e6 / (puts * seconds), requests
        )

    async def _send(self, producer: Producer, seconds: float) -> list[float]:
        load = self._load
        return await send_runs(producer, TOPIC, load.partitions, load.megabytes_per_s, seconds, load.run_records)
