"""Every broker reports the problems of the cluster, also those of bundles that another broker
owns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.client.messages.descriptions import ClusterDescription, cluster_description
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.ledgers import ledger_of


async def described(cluster: Cluster, address: str) -> ClusterDescription:
    return cluster_description(await cluster.line(address).describe_cluster(pb.DescribeClusterRequest()))


@virtual
async def test_a_cluster_is_well_once_all_its_bundles_have_owners() -> None:
    cluster = Cluster(MemoryStore("", virtual_sources(1000)))
    try:
        await cluster.start("a:1")
        said = (await described(cluster, "a:1")).problems
        assert [problem.split(",")[0] for problem in said] == [f"bundle {bundle} has no owner" for bundle in range(3)]
        await cluster.settled()
        await asyncio.sleep(1)
        assert (await described(cluster, "a:1")).problems == ()
    finally:
        await cluster.close()


@in_cluster("a:1", "b:1")
async def test_a_parked_partition_is_named_by_every_broker_until_it_is_repaired(cluster: Cluster) -> None:
    created = await cluster.create("t", 4)
    for partition in range(4):
        await cluster.produce("t", partition, b"x")
    bundle = created.partitions[1].bundle
    damaged = keys.segment(bundle, 2)

    async def park(draft_of: Callable[[fmt.Checkpoint], bool]) -> list[tuple[str, ...]]:
        await advance_checkpoint(
            ledger_of(cluster.store, bundle, cluster=cluster.settings, sources=virtual_sources(7)), draft_of
        )
        await cluster.produce("t", 1, b"y")  # a bundle that is used looks at its checkpoints
        await asyncio.sleep(30)
        return [(await described(cluster, address)).problems for address in cluster.brokers]

    def parked(draft: fmt.Checkpoint) -> bool:
        part = next((p for p in draft.partitions if (p.topic_id, p.partition) == (created.topic_id, 1)), None)
        part = part or draft.partitions.add(topic_id=created.topic_id, partition=1)
        part.parked.plan, part.parked.first_slot, part.parked.object_key = 1, 2, damaged
        return True

    def repaired(draft: fmt.Checkpoint) -> bool:
        for part in draft.partitions:
            part.ClearField("parked")
        return True

    for said in await park(parked):
        [problem] = said
        assert problem.startswith(f"partition t/1 of bundle {bundle} is parked, because {damaged} cannot be read: ")
        assert "ledgermq repair" in problem
    assert await park(repaired) == [(), ()]


@in_cluster("a:1", "b:1")
async def test_a_bundle_that_flaps_is_named(cluster: Cluster) -> None:
    await asyncio.sleep(70)
    assert (await described(cluster, "a:1")).problems == ()
    for broker in cluster.brokers.values():
        for change in range(6):
            claims = broker.directory.claims[1]
            claims.note(claims.epoch + 1, asyncio.get_running_loop().time() + change / 10)
    said = (await described(cluster, "b:1")).problems
    assert any("bundle 1 changed owners 6 times within a minute" in problem for problem in said), said


def test_a_broker_of_before_tells_its_troubles() -> None:
    answer = pb.DescribeClusterResponse(bundles=[pb.BundleInfo(bundle=2, trouble="why")])
    assert cluster_description(answer).problems == ("bundle 2 is in trouble: why",)
