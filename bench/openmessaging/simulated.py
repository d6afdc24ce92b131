"""The load before a modelled store, in virtual time: exact waits, and processors cost nothing.

python -m bench.openmessaging.simulated standard 50 --keyed
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from bench.distant import DISTANCES, EXPRESS, STANDARD
from bench.openmessaging.shape import Borne, Shape, bear
from bench.sizing.distant_brokers import DistantBrokers
from ledgermq_ledger.object_store.prices import S3_PRICES
from tests.simulation.loop import SimulatedLoop, run_simulated

TOPIC, BUNDLES = "openmessaging", 4
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Simulated:
    """`puts_per_gib`, `dollars_per_gib`: of all requests of the broker, at the list prices of S3 Standard."""

    borne: Borne
    puts_per_gib: float
    dollars_per_gib: float


def simulate(shape: Shape, distance: str) -> Simulated:
    """Bear the load; the same arguments give the same answer each time."""

    async def main(loop: SimulatedLoop) -> Simulated:
        brokers = DistantBrokers(loop, BUNDLES, DISTANCES[distance])
        await brokers.start()
        before: dict[str, int] = {}

        async def work() -> Simulated:
            await brokers.create_topic(TOPIC, shape.partitions)
            borne = await bear(
                brokers.client,
                TOPIC,
                shape,
                brokers.sources("clock").now_us,
                lambda: before.update(meter.by_operation()),
            )
            asked = {name: count - before.get(name, 0) for name, count in meter.by_operation().items()}
            gib = borne.records * 1024 / GIB
            dollars = sum(S3_PRICES.of(name) * count for name, count in asked.items())
            return Simulated(borne, asked["put_if_absent"] / gib, dollars / gib)

        meter = brokers.meter
        return await brokers.process("clients").spawn(work())

    return run_simulated(main)


def line(found: Simulated) -> str:
    borne = found.borne
    ack, seen = (" / ".join(f"{value:,.0f}" for value in pair) for pair in (borne.acknowledged_ms, borne.seen_ms))
    return (
        f"{borne.megabytes_per_s:.1f} MB/s | {ack} | {seen} | {found.puts_per_gib:,.0f} | {found.dollars_per_gib:.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distance", choices=(STANDARD, EXPRESS))
    parser.add_argument("megabytes_per_s", type=float)
    parser.add_argument("--keyed", action="store_true", help="keys over all partitions")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args(arguments)
    print("reached | acknowledged p50 / p99 ms | seen p50 / p99 ms | PUTs a GiB | $ a GiB")
    print(line(simulate(Shape(options.megabytes_per_s, options.keyed, options.seconds, 1.0), options.distance)))


if __name__ == "__main__":
    main()
