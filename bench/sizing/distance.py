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
from bench.openmessaging.shape import Shape
from bench.openmessaging.simulated import simulate
from bench.percentiles import at

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
