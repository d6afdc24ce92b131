"""Write docs/costs.md: dollars a month of LedgerMQ beside other systems, from the tables below and docs/sizing.md.

    python -m infra.costs_page > docs/costs.md      (`make pages`)

A part that no published price or measurement covers is None, and the page says so; nothing is guessed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.page import wrapped
from infra.crossing import BROKERS, BUNDLES, MEMBERS, PARTITIONS, read, written
from ledgermq_ledger.object_store.prices import HOURS_A_MONTH, S3_PRICES

SIZING = Path(__file__).parents[1] / "docs" / "sizing.md"
READ = "2026-11-30"
"""When the sources were read."""

GIB_GB = 2**30 / 1e9
TIB = 1024
WRITTEN_GIB = HOURS_A_MONTH * 3600
"""A month of 1 GiB/s."""
KEPT_GIB = 7 * 24 * 3600
ZONES = 3

CROSS_ZONE_GB = 0.02
"""A gigabyte from one zone to another: 0.01 dollars at each end."""
GP3_GB_MONTH = 0.08
DISK_FULL = 0.75
REPLICAS = 3
LOCAL_HOURS = 12
"""On disks, with tiered storage."""
CORE_HOUR = 0.04
"""As docs/sizing.md has it."""
OTHER_ZONE = (ZONES - 1) / ZONES
"""Of the traffic between clients and a leader in any zone."""

Tiers = Sequence[tuple[float, float]]
"""TiB a month up to which a price holds, and dollars a GiB."""
EVER = float("inf")
WARPSTREAM_WRITTEN: Tiers = ((50, 0.01), (300, 0.0075), (1550, 0.0055), (7800, 0.004), (EVER, 0.003))
WARPSTREAM_KEPT: Tiers = ((50, 0.01), (300, 0.0085), (800, 0.0075), (1800, 0.006), (EVER, 0.004))
WARPSTREAM_QUARTER_HOUR = 0.52083

PARTS = ("between zones", "disks", "object storage", "requests", "cores", "licence")


@dataclass(frozen=True, slots=True)
class System:
    """Dollars a month, in the order of PARTS. None: not published."""

    name: str
    zones: float | None
    disks: float | None
    objects: float | None
    requests: float | None
    cores: float | None
    licence: float | None

    @property
    def parts(self) -> tuple[float | None, ...]:
        return self.zones, self.disks, self.objects, self.requests, self.cores, self.licence

    @property
    def known(self) -> float:
        """Return the sum of what is published."""
        return sum(part for part in self.parts if part is not None)

    @property
    def is_whole(self) -> bool:
        return None not in self.parts


def tiered(gib: float, tiers: Tiers) -> float:
    """Return the price of so many GiB, each part at the price of its tier."""
    dollars, below = 0.0, 0.0
    for until_tib, price in tiers:
        until = min(gib, until_tib * TIB)
        dollars += max(0.0, until - below) * price
        below = max(below, until)
    return dollars


def sized(row: str) -> float:
    """Return a figure of the column 1 GB/s of docs/sizing.md, for 1 GiB/s."""
    found = re.search(rf"^\| {re.escape(row)} \| ([\d,.]+) \|", SIZING.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"docs/sizing.md has no row {row!r}"
    return float(found[1].replace(",", "")) * GIB_GB


def crossing(times: float) -> float:
    """Return the price of a month's records that cross zones so many times."""
    return times * WRITTEN_GIB * GIB_GB * CROSS_ZONE_GB


def crossed() -> dict[str, float]:
    """Return by how programs run how many times the records of LedgerMQ cross zones, written and read."""
    near = read(ZONES, with_rack=True)
    return {
        "with `rack`, records without keys": written(ZONES, with_rack=True) + near,
        "with `rack`, keys from every zone": written(ZONES, with_rack=False) + near,
        "no `rack`": written(ZONES, with_rack=False) + read(ZONES, with_rack=False),
    }


def cores(number: int) -> float:
    return number * CORE_HOUR * HOURS_A_MONTH


def systems() -> list[System]:
    objects = S3_PRICES.storage(round(KEPT_GIB * 2**30))
    disks = REPLICAS * KEPT_GIB * GIB_GB / DISK_FULL * GP3_GB_MONTH
    local = disks * LOCAL_HOURS * 3600 / KEPT_GIB
    following = crossing(OTHER_ZONE + REPLICAS - 1)
    requests = sized("requests of brokers, $ a month") + sized("requests of compaction, $ a month")
    ours = sized("cores, $ a month")
    warpstream = (
        tiered(WRITTEN_GIB, WARPSTREAM_WRITTEN)
        + tiered(KEPT_GIB, WARPSTREAM_KEPT)
        + 4 * HOURS_A_MONTH * WARPSTREAM_QUARTER_HOUR
    )
    return [
        System("LedgerMQ, clients and brokers in one zone", 0.0, 0.0, objects, requests, ours, 0.0),
        *(
            System(f"LedgerMQ, in three zones, {how}", crossing(times), 0.0, objects, requests, ours, 0.0)
            for how, times in crossed().items()
        ),
        System("Kafka, fetching from followers", following, disks, 0.0, 0.0, None, 0.0),
        System("Kafka, the same with tiered storage", following, local, objects, None, None, 0.0),
        System("Kafka, fetching from leaders", crossing(2 * OTHER_ZONE + REPLICAS - 1), disks, 0.0, 0.0, None, 0.0),
        System("WarpStream (BYOC, Pro)", 0.0, 0.0, objects, None, None, warpstream),
        System("Bufstream", 0.0, 0.0, objects, None, cores(6 * 4 + 3 * 2), None),
        System("Inkless (open source, run by yourself)", 7803 / 12, 0.0, objects, None, cores(6 * 16), 0.0),
    ]


CLAIMS = (
    ("Inkless", "under 288,000 $ a year of infrastructure", "24,000", "1 GiB/s in, 3 GiB/s out, three zones", "aiven"),
    ("Kafka", "about 3,320,000 $ a year for the same", "276,667", "by Aiven, beside the figure above", "aiven"),
    (
        "Bufstream",
        "less than 1,000,000 $ a month at 100 GiB/s",
        "10,000",
        "100 GiB/s in, 300 out, Google Cloud",
        "spanner",
    ),
    ("WarpStream", "1.5 × Bufstream", "not published", "by Buf, of the same load", "spanner"),
)
SOURCES = {
    "aiven": "https://aiven.io/blog/benchmarking-diskless-inkless-topics-part-1",
    "spanner": "https://buf.build/blog/bufstream-on-spanner",
    "bufstream": "https://buf.build/docs/bufstream/cost",
    "warpstream": "https://docs.warpstream.com/warpstream/reference/billing",
    "tiers": "https://github.com/api-evangelist/warpstream/blob/a15b7c86fff7da0ae6f29ceb14035beb8002935f/finops/warpstream-finops.yml",
    "zones": "https://www.bitsand.cloud/posts/slashing-data-transfer-costs",
    "gp3": "https://www.saisci.com/aws/gp3-throughput-explained/",
    "s3": "https://aws.amazon.com/s3/pricing/",
    "s3_copy": "https://devnotes.tech/understanding-aws-s3-pricing-a-complete-cost-breakdown-with-examples",
}

TEXT = """\
# What it costs, beside others

`make pages` writes this page from the tables in `infra/costs_page.py` and from [sizing](sizing.md). The load: **1 GiB/s
written, all of it read once, kept for 7 days, in three availability zones** of one AWS region (us-east-1, list prices,
no discounts). Dollars a month of {hours} hours:

| | {parts} | together |
|---|{lines}---|
{rows}

*Not published* means: no price or measurement that we could read covers it. Then *together* is what is known, and the
system costs more. Kafka's brokers are one such part: what machines it needs depends on how they are chosen, and no
neutral measurement was found. Rows with a gap cannot be ranked by their sums.

## What crosses zones

* **LedgerMQ**: a partition has one owner, in one zone. Give programs and brokers a `rack`. Then records without a key
  go to partitions whose owners are in the zone of their producer ([partitioners](serializers.md#partitioners)), and
  members of consumer groups get such partitions ([groups](groups.md)): nothing crosses. A key has its partition, so
  where every zone writes every key, two thirds of the records cross. That costs more than all requests. Keys that one
  zone alone uses do not cross for long: their bundles move there ([operations](operations.md#bundles-and-racks)).
  Without `rack` as much of what is read crosses as well. The shares are computed with the product's rules of
  placement, partitions and groups (`infra/crossing.py`: {brokers} brokers, {bundles} bundles, {partitions} partitions
  and {members} members, spread evenly), not measured. Brokers count what does cross
  ([operations](operations.md#what-topics-cost)). Traffic between brokers and S3 is free in one region.
* **Kafka** copies each record to two other zones, and producers reach leaders as above. Consumers may fetch from
  followers in their zone (KIP-392). With tiered storage only the newest {local} hours lie on disks.
* **WarpStream, Bufstream and Inkless** take records at a broker of the producer's zone. Inkless publishes 7,803 $ a
  year for metadata that crosses.

## From what

* **Records**: {written:,} GiB a month, {kept:,} GiB kept. They are counted as they are stored: with compression all
  parts but licences get cheaper alike. Licences by *uncompressed* GiB are computed for records that do not compress, so
  they are the least that is paid; with a compression of 4 they are four times as much for the same stored bytes.
* **Between zones**: 0.01 $ a GB at each end, 0.02 together ([source]({zones})).
* **Disks**: gp3 at {gp3} $ a GB and month ([source]({gp3_source})), {replicas} replicas, {full:.0%} full. Provisioned
  throughput is not counted.
* **Object storage**: {tb_month:.0f} $ a TB and month, the first step of S3 Standard ([AWS]({s3}), read in a
  [copy]({s3_copy})). Larger amounts
  cost less, for all alike. LedgerMQ rewrites records into Parquet; its size is taken as the same.
* **Requests** of LedgerMQ: {put} $ a thousand PUTs and LISTs, {get} a thousand GETs, counted in a simulation
  ([sizing](sizing.md), 1 GB/s, scaled to 1 GiB/s), compaction included. The same prices are the defaults of
  `ledgermq cost`.
* **Cores**: {core_hour} $ an hour, as in [sizing](sizing.md). LedgerMQ: measured, brokers planned to be busy for 60%.
  Bufstream: six brokers of 4 vCPUs and three etcd of 2 ([source]({bufstream})), for
  records that compress. Inkless: six machines of 16 vCPUs,
  which also served two more readers ([source]({aiven})); its PostgreSQL is not counted.
* **WarpStream's fees**: by GiB written and kept, uncompressed, and by cluster ([what is billed]({warpstream})). The
  prices are a third party's copy of its price page, which calls itself unverified ([source]({tiers})): look at the page
  before you rely on them. The dearest cluster tier of that copy, {quarter} $ a quarter of an hour.
* **Bufstream's fee**: not published where we could read. **Inkless**: open source; prices of Aiven's service for this
  load are not published.
* Sources were read on {read}.

## What vendors publish

Their own totals, for their own loads, which are not the one above. A month, for each GiB/s written:

| system | published | $ a month a GiB/s | load | source |
|---|---|---|---|---|
{claims}
"""


def shown(part: float | None) -> str:
    return "not published" if part is None else f"{part:,.0f}"


def _row(system: System) -> str:
    together = f"**{system.known:,.0f}**" if system.is_whole else f"more than {system.known:,.0f}"
    return f"| {system.name} | {' | '.join(map(shown, system.parts))} | {together} |"


def page() -> str:
    text = TEXT.format(
        hours=HOURS_A_MONTH,
        parts=" | ".join(PARTS),
        lines="---|" * len(PARTS),
        rows="\n".join(map(_row, systems())),
        written=WRITTEN_GIB,
        kept=KEPT_GIB,
        gp3=GP3_GB_MONTH,
        gp3_source=SOURCES["gp3"],
        replicas=REPLICAS,
        full=DISK_FULL,
        local=LOCAL_HOURS,
        brokers=BROKERS,
        bundles=BUNDLES,
        partitions=PARTITIONS,
        members=MEMBERS,
        tb_month=S3_PRICES.tb_month,
        put=S3_PRICES.write,
        get=S3_PRICES.read,
        core_hour=CORE_HOUR,
        quarter=WARPSTREAM_QUARTER_HOUR,
        read=READ,
        claims="\n".join(f"| {' | '.join(claim[:4])} | [source]({SOURCES[claim[4]]}) |" for claim in CLAIMS),
        **{name: SOURCES[name] for name in ("aiven", "bufstream", "warpstream", "tiers", "zones", "s3", "s3_copy")},
    )
    return wrapped(text)


if __name__ == "__main__":
    sys.stdout.write(page())
