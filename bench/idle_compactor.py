"""What a compaction service asks of a store in which nothing moves, in requests an hour and dollars
a month on S3.

    python -m bench.idle_compactor [--bundles 5 65] [--every 60]

In virtual time: topics with retention, all of it in Parquet; three hours to settle, then six hours
that are counted. One JSON line each.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.prices import S3_PRICES
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents
from tests.stores.counting import CountingMeter
from tests.virtual_time import run_virtual, virtual_sources
from tests.worlds.roots import Root

SETTLE_H, COUNTED_H, MONTH_H = 3, 6, 720


async def idle(bundles: int, every_s: float) -> dict[str, object]:
    sources, meter = virtual_sources(1), CountingMeter()
    store = MemoryStore("", sources)
    root = await Root.open(store, sources, bundles)
    for bundle in range(1, bundles):
        await root.create_topic(f"t{bundle}", 4, bundle=bundle, retention_ms=str(7 * 86_400_000))
        await root.produce(f"t{bundle}", *((partition, [bytes(100)] * 10) for partition in range(4)))
    engine = LocalEngine(sources, run_inline)
    service = CompactionService(MeteredStore(store, meter), root.cluster, sources, engine, ServiceEvents())
    running = asyncio.create_task(service.run(lambda: every_s))
    await asyncio.sleep(SETTLE_H * 3600)
    before = dict(meter.by_operation())
    await asyncio.sleep(COUNTED_H * 3600)
    made = {name: (count - before.get(name, 0)) / COUNTED_H for name, count in meter.by_operation().items()}
    service.stop(0)
    await running
    dollars = sum(S3_PRICES.of(name) * count for name, count in made.items()) * MONTH_H
    an_hour = {name: round(count) for name, count in made.items() if count}
    return {"bundles": bundles, "every_s": every_s, "requests_an_hour": an_hour, "dollars_a_month": round(dollars, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundles", type=int, nargs="+", default=[5, 65])
    parser.add_argument("--every", type=float, default=60.0)
    chosen = parser.parse_args()
    for bundles in chosen.bundles:
        print(json.dumps(run_virtual(lambda bundles=bundles: idle(bundles, chosen.every))), flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main()
