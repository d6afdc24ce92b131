"""Writes docs/sizing.md: what 1 GB/s, 100,000 partitions and 100 TB need, from bench/results.json
and a simulation of the protocol.

python -m bench.sizing.page
    the page
python -m bench.sizing.page --distance
    its two sections about the distance of S3 again; the others stay as they are
python -m bench.sizing.page --megabytes-per-s 50 --partitions 300 --kept-tb 5
    one demand of your own, to the terminal
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import afar, parquet, processes, requests
from bench.distant import DISTANCES, FAR
from bench.measures import Results
from bench.page import PLOTS, RESULTS, wrapped
from bench.plots import bundle
from bench.sizing import distance
from bench.sizing.crowded import crowded
from bench.sizing.model import (
    BUNDLES_A_BROKER,
    BUSY,
    Cluster,
    Costs,
    Demand,
    MonthlyBill,
    Prices,
    cluster_for,
    monthly_bill,
)
from bench.sizing.observe import Load, Observed, observe
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq_ledger.object_store.prices import S3_PRICES

PAGE = Path("docs/sizing.md")
PLOT = "sizing.png"
SECONDS = 10.0
DEMANDS = (
    Demand("1 GB/s", 1000, 1000, readers=1, kept_tb=86),
    Demand("100,000 partitions", 100, 100_000, readers=1, kept_tb=60),
    Demand("100 TB kept", 100, 1000, readers=3, kept_tb=100),
)
SWEPT = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0)
"""MB a second of one bundle."""
GREEDY = (0, 1, 4, 12)
SWEPT_PARTITIONS = 64
USED = ("P5", "P7", "P11", "S2")
COMPACTED = "segments to Parquet, values of 1000 B"

BEHIND_DISTANCE = "## How many bundles\n"

TEXT = """\
# What a cluster needs

`make sizing` writes this page from measured rows of [performance](performance.md) and from a simulation.
`python -m bench.sizing.page --megabytes-per-s 50 --partitions 300 --kept-tb 5` prints the same for your load.

{answers}

## From what

* **CPU of brokers**, ms a MB written, in runs of 64 records of 1000 B: {produce_ms} (P5).
  {costs.read_ms_per_mb:.1f} ms more for each consumer that is near the end (P11). A broker gets no
  more partitions than were measured. Its cost is that of the next larger measured number of
  partitions.
* **Compaction**: {costs.compaction_mb_per_core_s:,.0f} MB a second of a core,
  {costs.compaction_dollars_per_tb:.2f} dollars of requests a TB (P7).
* **Processes**: each broker is one process that is planned to use {busy:.0%} of a core; there are at
  least three, with {bundles} bundles each.
* **Requests and latencies**: the product's own SDK, broker and ledger in virtual time (`bench/sizing/`),
  {seconds:.0f} s of one broker at its share of the load, before a store that answers each request after
  {median_ms:.0f} ms in the median and {p99_ms:.0f} ms at the 99th percentile (log-normal), as S3 Standard does.
  Processor time costs nothing in the simulation, so a real busy broker is slower by its queues: see
  [below](#the-simulation-beside-a-real-broker).
* **Prices**: requests as S3 Standard lists them ({put_dollars:.0f} dollars a million PUTs and LISTs,
  {get_dollars:.2f} a million GETs), storage
  {prices.tb_month:.0f} dollars a TB and month, {prices.core_hour:.2f} dollars for an hour of a core. The last two are
  assumptions: `--tb-month`, `--core-hour`. Traffic between clients, brokers and S3 in one
  zone and region counts as free. Between zones it is not free, and may cost more than everything else together.
* Measured: {runs}. Your machines may need half the time of these{unlike}.

## The simulation beside a real broker

Row S2 runs one real broker with {s2_bundles} bundles, and its producer, on two cores, before MinIO that answers as late
as S3 does. The same load in the simulation has no processor time. One producer sends runs of 64 records to
{s2_partitions} partitions, and has at most {window} batches of a partition on their way, so it cannot send faster than
answers come: what it reached is in the second column.

{compared}

{distance}
## How many bundles

A bundle is a ledger with its own segments. More bundles spread over more brokers, and each bundle costs requests. One
bundle with the settings for S3 (`flush_spacing_ms` 100), simulated as above:

{swept}

![Dollars and latency by rate](images/{plot})

## A small producer beside greedy ones

Single records, 50 ms apart, are sent to partitions that greedy producers flood at the same time over separate
connections, simulated as above. The waiting bytes of a connection and of a bundle are bounded, so no producer can fill
the broker alone:

{crowds}
"""


class NotMeasured(Exception):
    """The results lack a row that the model needs."""


def costs_of(results: Results) -> Costs:
    """Return the costs. Raises NotMeasured."""

    def median(row: str, what: str, subject: str) -> float:
        found = results.of(row, what, subject)
        if found is None:
            raise NotMeasured(
                f"{RESULTS} has no {what!r} of {subject}: python -m bench.run --only {row} --keep measures it"
            )
        return found.median

    by_partitions = {number: requests.subject(number) for number in requests.PARTITIONS if number > 1}
    one = processes.subject(1)
    return Costs(
        produce_ms_per_mb={number: median("P5", "broker's CPU", name) for number, name in by_partitions.items()},
        memory_mib={number: median("P5", "broker's memory", name) for number, name in by_partitions.items()},
        read_ms_per_mb=median("P11", "brokers' CPU, end to end", one) - median("P11", "brokers' CPU, producing", one),
        compaction_mb_per_core_s=median("P7", COMPACTED, parquet.COMPACTION),
        compaction_dollars_per_tb=median("P7", f"{COMPACTED}: {parquet.REQUESTS}", parquet.COMPACTION),
    )


def answer(demand: Demand, costs: Costs, prices: Prices) -> tuple[Cluster, Observed, MonthlyBill]:
    cluster = cluster_for(demand, costs)
    print(f"{demand.name}: {SECONDS:.0f} virtual seconds of one of {cluster.brokers} brokers", file=sys.stderr)
    seen = observe(Load(cluster.megabytes_per_s_a_broker, cluster.partitions_a_broker, BUNDLES_A_BROKER, SECONDS))
    return cluster, seen, monthly_bill(demand, cluster, costs, seen.dollars_per_s, prices)


def table(demands: Sequence[Demand], costs: Costs, prices: Prices) -> list[str]:
    """Return the table, with a column for each demand."""
    found = [(demand, *answer(demand, costs, prices)) for demand in demands]
    rows: dict[str, list[str]] = {
        "MB/s written": [f"{d.megabytes_per_s:,.0f}" for d, *_ in found],
        "partitions": [f"{d.partitions:,}" for d, *_ in found],
        "consumers of everything": [f"{d.readers}" for d, *_ in found],
        "kept, TB": [f"{d.kept_tb:,.0f}" for d, *_ in found],
        "**broker processes**, a core each": [f"**{c.brokers}**" for _, c, *_ in found],
        "cores that brokers keep busy": [f"{c.broker_cores:,.1f}" for _, c, *_ in found],
        "cores that compaction keeps busy": [f"{c.compaction_cores:,.1f}" for _, c, *_ in found],
        "memory of a broker, MiB": [f"{c.memory_mib:,.0f}" for _, c, *_ in found],
        "partitions of a broker": [f"{c.partitions_a_broker:,}" for _, c, *_ in found],
        "bundles": [f"{c.bundles}" for _, c, *_ in found],
        "MB/s of a bundle": [f"{c.megabytes_per_s_a_bundle:,.2f}" for _, c, *_ in found],
        "acknowledged, p50 / p99 ms": [
            f"{o.acknowledged_ms_p50:,.0f} / {o.acknowledged_ms_p99:,.0f}" for _, _, o, _ in found
        ],
        "segments a second, all brokers": [f"{o.puts_per_s * c.brokers:,.0f}" for _, c, o, _ in found],
        "MB of a segment": [f"{o.put_megabytes:,.2f}" for _, _, o, _ in found],
        "requests of brokers, $ a month": [f"{b.write_requests:,.0f}" for *_, b in found],
        "requests of compaction, $ a month": [f"{b.compaction_requests:,.0f}" for *_, b in found],
        "cores, $ a month": [f"{b.cores:,.0f}" for *_, b in found],
        "storage, $ a month": [f"{b.storage:,.0f}" for *_, b in found],
        "**together, $ a month**": [f"**{b.total:,.0f}**" for *_, b in found],
    }
    head = ["| | " + " | ".join(demand.name for demand in demands) + " |", "|---" * (len(demands) + 1) + "|"]
    return head + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]


def sweep() -> list[tuple[float, Observed]]:
    seen = []
    for rate in SWEPT:
        print(f"one bundle at {rate:g} MB/s", file=sys.stderr)
        seen.append((rate, observe(Load(rate, SWEPT_PARTITIONS, 1, SECONDS))))
    return seen


def swept(seen: Sequence[tuple[float, Observed]]) -> list[str]:
    lines = [
        (
            "| MB/s of a bundle | segments a second | MB of a segment | acknowledged, p50 ms | p99 ms | $ of segments a"
            " TB |"
        ),
        "|---" * 6 + "|",
    ]
    for rate, o in seen:
        cells = (
            f"{rate:g}",
            f"{o.puts_per_s:,.1f}",
            f"{o.put_megabytes:,.2f}",
            f"{o.acknowledged_ms_p50:,.0f}",
            f"{o.acknowledged_ms_p99:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} | {_segments_per_tb(rate, o):,.2f} |")
    return lines


def compared(results: Results) -> list[str]:
    """Return what row S2 measured beside the same in the simulation. Raises NotMeasured."""

    def value(what: str, subject: str) -> float:
        found = results.of("S2", what, subject)
        if found is None:
            raise NotMeasured(
                f"{RESULTS} has no {what!r} of {subject}: python -m bench.run --only S2 --keep measures it"
            )
        return found.median

    lines = [
        ("| store, MB/s | reached | acknowledged, p50 / p99 ms | simulated | PUTs a GiB | simulated |"),
        "|---" * 6 + "|",
    ]
    for subject in afar.SUBJECTS.values():
        for rate in afar.MEGABYTES_PER_S:
            at_rate, alike = f"{rate} MB/s", afar.simulated(subject)
            acknowledged = [
                " / ".join(f"{value(f'acknowledged, {at_rate}, {part}', name):,.0f}" for part in ("p50", "p99"))
                for name in (subject, alike)
            ]
            puts = [f"{value(f'PUTs, {at_rate}', name):,.0f}" for name in (subject, alike)]
            cells = (f"{subject}, {rate}", f"{value(f'reached of {at_rate}', subject):.1f}", *acknowledged, *puts)
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def crowds() -> list[str]:
    head = (
        "| greedy producers | small one acknowledged, p50 ms | longest ms | MB that each greedy one got through, fewest"
        " to most |"
    )
    lines = [head, "|---" * 4 + "|"]
    for greedy in GREEDY:
        print(f"a small producer beside {greedy}", file=sys.stderr)
        seen = crowded(greedy)
        spread = f"{min(seen.greedy_megabytes):,.0f} to {max(seen.greedy_megabytes):,.0f}" if greedy else ""
        lines.append(f"| {greedy} | {seen.acknowledged_ms_p50:,.0f} | {seen.acknowledged_ms_longest:,.0f} | {spread} |")
    return lines


def _segments_per_tb(rate: float, seen: Observed) -> float:
    return seen.segment_dollars_per_s / rate * 1e6


def markdown(results: Results, costs: Costs, prices: Prices) -> str:
    seen = sweep()
    bundle(
        [(rate, o.acknowledged_ms_p50, o.acknowledged_ms_p99, _segments_per_tb(rate, o)) for rate, o in seen],
        PLOTS / PLOT,
    )
    used = [(rows, run) for run in results.runs if (rows := [row for row in run.rows if row in USED])]
    alike = len({run.machine for _, run in used}) == 1
    return TEXT.format(
        answers="\n".join(table(DEMANDS, costs, prices)),
        produce_ms=", ".join(f"{ms:.1f} at {number:,} partitions" for number, ms in costs.produce_ms_per_mb.items()),
        costs=costs,
        prices=prices,
        busy=BUSY,
        bundles=BUNDLES_A_BROKER,
        seconds=SECONDS,
        put_dollars=1000 * S3_PRICES.write,
        get_dollars=1000 * S3_PRICES.read,
        median_ms=1000 * DISTANCES[FAR].write.median_s,
        p99_ms=1000 * DISTANCES[FAR].write.p99_s,
        runs="; ".join(f"{', '.join(rows)} on {run.machine}, {run.date}" for rows, run in used),
        unlike="" if alike else ". Their cores differ, but those of brokers and of compaction are added here",
        swept="\n".join(swept(seen)),
        plot=PLOT,
        crowds="\n".join(crowds()),
        compared="\n".join(compared(results)),
        distance=distance.sections(),
        s2_bundles=afar.BUNDLES,
        s2_partitions=afar.PARTITIONS,
        window=WINDOW_BATCHES,
    )


def with_distance(page: str) -> str:
    """Return the page with new sections about the distance of S3, where they are or belong."""
    before, heading, behind = page.partition(distance.FIRST)
    if not heading:
        before, _, behind = page.partition(BEHIND_DISTANCE)
        behind = BEHIND_DISTANCE + behind
    return before + wrapped(distance.sections()) + "\n" + BEHIND_DISTANCE + behind.partition(BEHIND_DISTANCE)[2]


def main(arguments: Sequence[str] | None = None) -> None:
    usual = Prices()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes-per-s", type=float, help="written, by all producers together")
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--readers", type=int, default=1, help="consumers of everything (default: 1)")
    parser.add_argument("--kept-tb", type=float, default=0.0, help="kept, in TB")
    parser.add_argument("--core-hour", type=float, default=usual.core_hour, help="dollars (default: %(default)s)")
    parser.add_argument(
        "--tb-month", type=float, default=usual.tb_month, help="dollars for storage (default: %(default)s)"
    )
    parser.add_argument("--distance", action="store_true", help="write the sections about the distance of S3 again")
    options = parser.parse_args(arguments)
    if options.distance:
        PAGE.write_text(with_distance(PAGE.read_text()))
        return
    prices = Prices(options.core_hour, options.tb_month)
    results = Results.load(RESULTS)
    try:
        costs = costs_of(results)
    except NotMeasured as error:
        parser.error(str(error))
    if options.megabytes_per_s is None:
        PAGE.write_text(wrapped(markdown(results, costs, prices)))
        return
    if options.megabytes_per_s <= 0 or options.partitions < 1 or options.readers < 0 or options.kept_tb < 0:
        parser.error("a load has some MB a second and partitions, and no less than nothing of the rest")
    own = Demand("your load", options.megabytes_per_s, options.partitions, options.readers, options.kept_tb)
    print("\n".join(table([own], costs, prices)))


if __name__ == "__main__":
    main()
