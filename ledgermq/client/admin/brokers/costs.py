"""Add up what the brokers of a cluster have counted: what requests to the store cost, by topic and principal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ledgermq.client.admin.brokers.reports import KeptCost, TopicCost
from ledgermq.protocol import ledgermq_pb2 as pb

PICO = 10**12
TB = 10**12


@dataclass(frozen=True, slots=True)
class ClientTraffic:
    """Bytes of requests that clients sent (`bytes_in`) and of answers that they received since the brokers started.

    `rack`: where they run, seen from the broker: `same`, `other`, or `unknown` where the program has no setting `rack`,
    or the broker has none. Without traffic between brokers, of the Kafka protocol, and of encryption.
    """

    rack: str
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class CostReport:
    """Costs of a cluster's store. `since`: when the broker that has counted for the shortest time began; brokers count
    from their start. `dollars`: of all requests of all brokers. `costs`: the same by topic and principal, the most
    expensive first; where no topic was asked for they add up to `dollars`. `kept`: bytes in the store.
    `traffic`: of all topics, by where clients run; brokers of earlier releases do not count it.
    """

    since: datetime
    brokers: int
    dollars: float
    costs: Sequence[TopicCost]
    kept: Sequence[KeptCost]
    traffic: Sequence[ClientTraffic] = ()


def merged(answers: Sequence[pb.ListCostsResponse]) -> CostReport:
    """Return one report of the answers of all brokers, of which there is at least one."""
    spent: dict[tuple[str, str], list[int]] = {}
    for answer in answers:
        for cost in answer.costs:
            sums = spent.setdefault((cost.topic, cost.principal), [0, 0])
            sums[0] += cost.write_picodollars
            sums[1] += cost.read_picodollars
    costs = [TopicCost(*of, writes / PICO, reads / PICO) for of, (writes, reads) in spent.items()]
    return CostReport(
        since=datetime.fromtimestamp(max(answer.since_ms for answer in answers) / 1000, UTC),
        brokers=len(answers),
        dollars=sum(answer.total_picodollars for answer in answers) / PICO,
        costs=sorted(costs, key=lambda cost: (-cost.dollars, cost.topic, cost.principal)),
        traffic=_traffic(answers),
        kept=sorted(_kept(answers), key=lambda kept: (-kept.size_bytes, kept.topic)),
    )


def _traffic(answers: Iterable[pb.ListCostsResponse]) -> Sequence[ClientTraffic]:
    sums: dict[str, list[int]] = {}
    for answer in answers:
        for each in answer.traffic:
            found = sums.setdefault(each.rack, [0, 0])
            found[0] += each.bytes_in
            found[1] += each.bytes_out
    return [ClientTraffic(rack, bytes_in, bytes_out) for rack, (bytes_in, bytes_out) in sums.items()]


def _kept(answers: Iterable[pb.ListCostsResponse]) -> Iterable[KeptCost]:
    sizes: dict[str, int] = {}
    dollars: dict[str, float] = {}
    unknown: dict[str, int] = {}
    for answer in answers:
        for kept in answer.kept:
            sizes[kept.topic] = sizes.get(kept.topic, 0) + kept.size_bytes
            dollars[kept.topic] = dollars.get(kept.topic, 0.0) + answer.tb_month_dollars * kept.size_bytes / TB
            unknown[kept.topic] = unknown.get(kept.topic, 0) + kept.partitions_unknown
    for topic, size_bytes in sizes.items():
        yield KeptCost(topic, size_bytes, dollars[topic], unknown[topic])
