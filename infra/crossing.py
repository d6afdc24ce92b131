"""Compute which part of the records crosses zones, with the product's own rules of placement, partitions and groups.

The load is spread evenly: each zone has as many producers, members and brokers as any other, and records without a key
are spread evenly over the partitions that producers choose.
"""

from __future__ import annotations

from ledgermq.client.producing.routing.choices import near
from ledgermq_broker.cluster.placement.bundles import place
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.problem import Candidate, Problem
from ledgermq_offsets.assignors.uniform import assign
from ledgermq_offsets.topics import TopicSize

BROKERS, BUNDLES, PARTITIONS, MEMBERS = 24, 48, 288, 24
"""Brokers and bundles as docs/sizing.md has them for 1 GB/s."""


def racks_of_partitions(zones: int) -> list[str]:
    """Return the zone of each partition's owner, as bundles are placed by count."""
    racks = {f"broker-{number:02}": f"zone-{number % zones}" for number in range(BROKERS)}
    bundles = range(1, BUNDLES + 1)
    owners = place(bundles, racks, {})
    return [racks[owners[bundles[partition % BUNDLES]]] for partition in range(PARTITIONS)]


def written(zones: int, *, with_rack: bool) -> float:
    """Return the share of records without a key that producers send to another zone; with a key it is the same as
    without `rack`.
    """
    racks, total = racks_of_partitions(zones), 0.0
    for zone in sorted({*racks}):
        chosen = (near(zone, racks) if with_rack else []) or range(PARTITIONS)
        total += sum(racks[place_] != zone for place_ in chosen) / len(chosen)
    return total / zones


def read(zones: int, *, with_rack: bool) -> float:
    """Return the share of records that members of a group read from another zone."""
    racks, topic = racks_of_partitions(zones), TopicSize(1, "t", PARTITIONS)
    zone_of = {f"member-{number:02}": f"zone-{number % zones}" for number in range(MEMBERS)}
    members = [
        Candidate(name, name, frozenset((1,)), zone if with_rack else "") for name, zone in sorted(zone_of.items())
    ]
    assigned = assign(Problem(members, [topic], rack=lambda _, partition: racks[partition]))
    return sum(racks[number] != zone_of[assigned[PartitionId(1, number)]] for number in range(PARTITIONS)) / PARTITIONS
