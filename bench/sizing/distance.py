"""Tables of docs/sizing.md about what the distance of S3 does to a producer: where the time of its batches goes, and
the load of row S5. All of it in virtual time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from bench.distant import DISTANCES, EXPRESS, STANDARD
from bench.journey.loads import Load
from bench.journey.run import Breakdown, simulated
from bench.journey.watch import STAGES
from bench.openmessaging.row import P99_MS_MAX
from bench.openmessaging.shape import PARTITIONS, PRODUCERS, Shape
from bench.openmessaging.simulated import simulate
from bench.percentiles import at
from ledgermq.protocol.limits import WINDOW_BATCHES

WATCHED = {
    "100 records/s": Load(seconds=15, records_per_s=100),
    "5 MB/s": Load(seconds=10, megabytes_per_s=5),
    "50 MB/s": Load(seconds=10, megabytes_per_s=50),
}
NAMES = {STANDARD: "S3 Standard", EXPRESS: "S3 Express"}
RATES = {STANDARD: (5.0, 20.0, 50.0, 100.0), EXPRESS: (5.0, 50.0)}
KEYED_RATES = {STANDARD: (5.0, 20.0), EXPRESS: (5.0,)}
"""One record a batch: more takes minutes to simulate."""
SECONDS, SETTLING_S = 2.0, 1.0
FIRST = "## Where the time of a batch goes\n"

TEXT = (
    FIRST
    + """
`python -m bench.journey.run standard --records-per-s 100` prints it for a load of your own, with `--real` for a broker
in real time. Here one producer sends to {watched_partitions} partitions of four bundles in virtual time, before a store
as late as S3 Standard (a PUT takes {standard_ms:.0f} ms in the median, {standard_mean_ms:.0f} on average): single
records, which a consumer reads, then runs of 64 records of 1000 B. Means add up.

{stages}

* *spacing* is the rest of the PUT that is on its way, for as long as it takes or at most `flush_spacing_ms`: a bundle
  that is written all the time has a PUT on its way all the time. So an acknowledgement takes more than one PUT.
* *order*: segments of a bundle count in their order, so one behind a slow PUT waits for it. A PUT that takes longer
  than nineteen of twenty did lately is sent a second time beside the first.
* *answer*: batches of each bundle travel in requests of their own where answers are slow, and each request is
  answered when its own batches are stored. A bundle with a slow PUT delays no other one.
* A program that sends faster than answers come fills larger batches: records, and small tables of `send_batch`, that
  wait for one of the {window} places of their partition travel together, up to `batch_bytes_max`.

## The shape of the OpenMessaging benchmark

{om_producers} producers send records of 1 KiB to {om_partitions} partitions, and one group reads all of it, through one
broker with four bundles; simulated as above, so the processor is no limit here. By default that benchmark has no keys:
a producer stays with a partition until its batch is sent. With keys over all partitions nearly each record is a batch.

{openmessaging}

Row S5 of [performance](performance.md) is the same with a real broker on one core, if it was measured.
"""
)


def sections() -> str:
    """Return both sections, as Markdown that is not wrapped."""
    write = DISTANCES[STANDARD].write
    return TEXT.format(
        stages="\n".join(stages()),
        openmessaging="\n".join(openmessaging()),
        watched_partitions=next(iter(WATCHED.values())).partitions,
        standard_ms=1000 * write.median_s,
        standard_mean_ms=1000 * write.mean_s,
        window=WINDOW_BATCHES,
        om_producers=PRODUCERS,
        om_partitions=PARTITIONS,
    )


def stages() -> list[str]:
    """Return the table of stages, with a column for each load."""
    found: dict[str, Breakdown] = {}
    for name, load in WATCHED.items():
        print(f"stages at {name}", file=sys.stderr)
        found[name] = simulated(load, DISTANCES[STANDARD])
    lines = ["| mean ms | " + " | ".join(found) + " | |", "|---" * (len(found) + 2) + "|"]
    for stage, what in STAGES.items():
        lines.append(_line(stage, [statistics.fmean(each.of(stage)) for each in found.values()], what))
    lines.append(_line("**together**", [statistics.fmean(each.whole()) for each in found.values()], "of a batch"))
    felt = [each.felt.acknowledged_s for each in found.values()]
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        what = "of records, or of runs, since they were due"
        lines.append(_line(f"acknowledged, {name}", [1000 * at(values_s, part) for values_s in felt], what))
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        seen = [1000 * at(each.felt.seen_s, part) if each.felt.seen_s else None for each in found.values()]
        lines.append(_line(f"seen by a consumer, {name}", seen, "since they were due"))
    puts = [each.puts_per_s for each in found.values()]
    return [*lines, _line("PUTs a second", puts, "of four bundles together")]


def _line(name: str, values: Sequence[float | None], what: str) -> str:
    cells = " | ".join("" if value is None else f"{value:,.1f}" for value in values)
    return f"| {name} | {cells} | {what} |"


def openmessaging() -> list[str]:
    """Return the table of row S5."""
    head = "| store, MB/s | acknowledged, p50 / p99 ms | seen, p50 / p99 ms | PUTs a GiB | $ a GiB |"
    lines = [head, "|---" * 5 + "|"]
    for distance, name in NAMES.items():
        for keyed, rates in ((False, RATES[distance]), (True, KEYED_RATES[distance])):
            for rate in rates:
                kind = f"{name}, {rate:g}{', keys' if keyed else ''}"
                print(f"the shape of OpenMessaging: {kind}", file=sys.stderr)
                found = simulate(Shape(rate, keyed, SECONDS, SETTLING_S), distance)
                pairs = (found.borne.acknowledged_ms, found.borne.seen_ms)
                cells = [" / ".join(f"{value:,.0f}" for value in pair) for pair in pairs]
                lines.append(
                    f"| {kind} | {' | '.join(cells)} | {found.puts_per_gib:,.0f} | {found.dollars_per_gib:.3f} |"
                )
                if found.borne.acknowledged_ms[1] > P99_MS_MAX:
                    break
    return lines
