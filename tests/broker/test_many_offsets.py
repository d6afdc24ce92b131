"""Ends of many partitions in one request are those that one request for each of them gets, with the same refusals."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.admission.queries import PARALLEL_QUERIES
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.virtual_time import virtual
from tests.waiting import until

PARTITIONS = 3 * PARALLEL_QUERIES


def durable(topic: str, partition: int) -> pb.OffsetQuery:
    return pb.OffsetQuery(topic=topic, partition=partition, durable=True)


async def answers(cluster: Cluster, address: str, *asked: pb.OffsetQuery) -> list[tuple[int, str, str]]:
    """(offset, code of the error, owner that it names) of each."""
    found = (await cluster.line(address).list_offsets(pb.ListOffsetsRequest(queries=asked))).results
    return [(each.offset, each.error.code, each.error.owner) for each in found]


@in_cluster("a:1", "b:1", bundles=4)
async def test_many_ends_are_those_of_single_requests(cluster: Cluster) -> None:
    await cluster.create("t", PARTITIONS)
    await cluster.create("kept", 2)
    await cluster.create("gone", 2)
    for partition in range(0, PARTITIONS, 5):
        await cluster.produce("t", partition, *[b"x"] * (partition + 1))
    for name, at_once in (("kept", False), ("gone", True)):
        await cluster.produce(name, 0, b"x")
        await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name=name, now=at_once))
    asked = [durable("t", partition) for partition in range(PARTITIONS + 2)]
    asked += [durable("kept", 0), durable("gone", 0), durable("absent", 0), pb.OffsetQuery(topic="t")]
    asked += [
        pb.OffsetQuery(topic="t", partition=5, latest=True),
        pb.OffsetQuery(topic="t", partition=5, earliest=True),
    ]
    ends, codes = {}, set[str]()
    for address in cluster.brokers:
        many = await answers(cluster, address, *asked)
        assert many == [(await answers(cluster, address, query))[0] for query in asked]
        codes |= {code for _, code, _ in many}
        ends |= {at: end for at, (end, code, _) in enumerate(many[:PARTITIONS]) if not code}
    assert codes >= {"", "NOT_OWNER", "UNKNOWN_PARTITION", "UNKNOWN_TOPIC", "INVALID_REQUEST"}
    assert ends == {at: 0 if at % 5 else at + 1 for at in range(PARTITIONS)}


@virtual
async def test_an_owner_that_was_taken_over_gives_no_ends() -> None:
    async with cluster_of("a:1", "b:1", bundles=2) as cluster:
        await cluster.create("t", PARTITIONS)
        former = await cluster.owner_of("t", 0)
        asked = [durable("t", partition) for partition in range(PARTITIONS)]
        before = await answers(cluster, former, *asked)
        mine = [at for at, (_, code, _) in enumerate(before) if not code]
        assert mine
        await cluster.line(former).drain_broker(pb.DrainBrokerRequest(address=former, nonce=b"n" * 16))
        [other] = set(cluster.brokers) - {former}
        await until(lambda: all(cluster.serving("t", partition) == [other] for partition in mine))
        assert {code for _, code, _ in await answers(cluster, former, *asked)} == {"NOT_OWNER"}
        assert {code for _, code, _ in await answers(cluster, other, *asked)} == {""}
