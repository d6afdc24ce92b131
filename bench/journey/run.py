"""Print where the time of batches goes, by stage, with a store at the distance of S3.

    python -m bench.journey.run standard --records-per-s 100
    python -m bench.journey.run standard --megabytes-per-s 50
        in virtual time: exact waits, and processors cost nothing
    python -m bench.journey.run standard --records-per-s 100 --real
        a real broker on a port of this process, before MinIO and a proxy that answers as late; --root s3://BUCKET/PREFIX
        takes a store of your own

Means of the stages add up to the mean of the whole; percentiles do not.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ledgermq
from bench.distant import DISTANCES, EXPRESS, STANDARD, Distance
from bench.journey.loads import Felt, Load, bear
from bench.journey.watch import SEEN, STAGES, Journey, watching
from bench.percentiles import at
from bench.sizing.distant_brokers import DistantBrokers
from bench.stores import S3_EXPRESS, S3_STANDARD, stores
from ledgermq.sources import Sources
from ledgermq_broker.embedded import embedded_settings
from ledgermq_broker.node import Node
from tests.simulation.loop import SimulatedLoop, run_simulated

BUNDLES = 4
TOPIC = "watched"
REAL = {STANDARD: S3_STANDARD, EXPRESS: S3_EXPRESS}
PARTS = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Journeys, and what the program felt. `puts_per_s`: of the store, while the load lasted; None: not counted."""

    journeys: Sequence[Journey]
    felt: Felt
    puts_per_s: float | None = None

    def of(self, stage: str) -> list[float]:
        """Return the sorted milliseconds of a stage."""
        return sorted(1000 * journey.stages_s()[stage] for journey in self.journeys)

    def seen(self) -> list[float]:
        """Return the sorted milliseconds from the acknowledgement in the broker until a consumer had the batch."""
        return sorted(
            1000 * (journey.at_s[SEEN] - journey.at_s["acknowledged"])
            for journey in self.journeys
            if SEEN in journey.at_s
        )

    def whole(self) -> list[float]:
        return sorted(1000 * sum(journey.stages_s().values()) for journey in self.journeys)


def simulated(load: Load, distance: Distance) -> Breakdown:
    """Watch a load in virtual time; the same arguments give the same answer each time."""

    async def main(loop: SimulatedLoop) -> Breakdown:
        brokers = DistantBrokers(loop, BUNDLES, distance)
        await brokers.start()

        async def work() -> Breakdown:
            await brokers.create_topic(TOPIC, load.partitions)
            client = brokers.client("client")
            with watching() as watch:
                before = brokers.meter.by_operation()
                felt = await bear(client, TOPIC, load, watch)
                after = brokers.meter.by_operation()
            await client.close()
            puts = after["put_if_absent"] - before["put_if_absent"]
            return Breakdown(watch.journeys(), felt, puts / felt.seconds)

        return await brokers.process("client").spawn(work())

    return run_simulated(main)


async def real(load: Load, root: str) -> Breakdown:
    """Watch a load of a real broker on a port of this process, with the defaults of its store."""
    settings = embedded_settings().model_copy(update={"bundles": BUNDLES + 1, "background_compaction": False})
    async with await Node.start(root, settings, Sources()) as node, ledgermq.connect(node.address) as client:
        await client.create_topic(TOPIC, load.partitions)
        with watching() as watch:
            felt = await bear(client, TOPIC, load, watch)
    return Breakdown(watch.journeys(), felt)


def table(found: Breakdown) -> list[str]:
    """Return the breakdown as a table of milliseconds."""
    lines = ["| stage | mean ms | p50 | p99 | |", "|---|---|---|---|---|"]
    whole = found.whole()
    for stage, what in STAGES.items():
        lines.append(f"| {stage} | {_cells(found.of(stage))} | {what} |")
    lines.append(f"| **together** | {_cells(whole)} | from a batch's first record to its answer |")
    if seen := found.seen():
        lines.append(f"| {SEEN} | {_cells(seen)} | beside the answer: acknowledged, until a consumer has it |")
    return lines


def _cells(sorted_ms: Sequence[float]) -> str:
    values = (statistics.fmean(sorted_ms), *(at(sorted_ms, part) for part in PARTS))
    return " | ".join(f"{value:,.1f}" for value in values)


def felt_line(found: Breakdown) -> str:
    parts = [f"{len(found.journeys)} batches", f"all acknowledged after {found.felt.seconds:.1f} s"]
    for name, values_s in (("acknowledged", found.felt.acknowledged_s), ("seen", found.felt.seen_s)):
        if values_s:
            parts.append(f"{name} p50 {1000 * at(values_s, 0.5):,.0f} p99 {1000 * at(values_s, 0.99):,.0f} ms")
    if found.puts_per_s is not None:
        parts.append(f"{found.puts_per_s:.1f} PUTs a second")
    return "; ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distance", choices=REAL)
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--records-per-s", type=float, default=0.0)
    kinds.add_argument("--megabytes-per-s", type=float, default=0.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--real", action="store_true", help="a real broker, MinIO and a proxy instead of virtual time")
    parser.add_argument(
        "--root", help="a real broker on this root, which holds no cluster yet, instead of virtual time"
    )
    options = parser.parse_args(arguments)
    load = Load(options.seconds, options.records_per_s, options.megabytes_per_s, options.partitions)
    if options.root:
        found = asyncio.run(real(load, options.root))
    elif options.real:
        store = REAL[options.distance]
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), store) as roots:
            if store not in roots:
                parser.error("MinIO is not installed: infra/minio.py fetches it")
            found = asyncio.run(real(load, roots[store]()))
    else:
        found = simulated(load, DISTANCES[options.distance])
    print("\n".join([*table(found), "", felt_line(found)]))


if __name__ == "__main__":
    main()
