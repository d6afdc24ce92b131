"""No principal begins so many queue groups that others cannot begin one. In virtual time, with small tables."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.access import RULES, change
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.shared_groups import Fill
from tests.broker.shared_queues import QUEUES, one_queue_by_a_member, one_queue_by_a_reset, queue_begun, queue_deleted
from tests.broker.test_shared_tables import MOST, SMALL, callers, filled, made_topics, tokens_of
from tests.waiting import until

shared = in_cluster("a:1", constants=SMALL, bundles=2, **RULES)


async def used(cluster: Cluster, tokens: dict[str, str], name: str = "mallory") -> int:
    described = await cluster.line("a:1", tokens["root"]).list_quotas(pb.ListQuotasRequest(use_of=f"user:{name}"))
    return described.use.used["queue_partitions"]


@pytest.mark.parametrize("begin", QUEUES, ids=lambda each: str(each.__name__))
@shared
async def test_each_way_to_begin_a_queue_group_counts_to_its_principal(cluster: Cluster, begin: Fill) -> None:
    """Ten thousand pairs of queue group and partition kept all others from beginning one, until they were deleted."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    taken, error = await filled(mallory, begin)
    assert (taken, error.exact_code, error.limit) == (MOST // 2, "QUOTA_EXCEEDED", "queue_partitions")
    for other in QUEUES:
        refused = await other(mallory, taken + 1)
        assert refused is not None, "there is no other way around it"
        assert refused.limit == "queue_partitions"
    assert await begin(victim, 0) is None
    assert await used(cluster, tokens) == taken


@shared
async def test_a_pair_that_is_deleted_frees_the_share_of_the_principal_that_began_it(cluster: Cluster) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, _ = await callers(cluster, "a:1", tokens)
    taken, _ = await filled(mallory, one_queue_by_a_member)
    assert await queue_deleted(mallory, 0) is None
    assert await one_queue_by_a_reset(mallory, taken) is None
    assert await one_queue_by_a_member(mallory, taken + 1) is not None
    await mallory.line.delete_topic(pb.DeleteTopicRequest(name="mine"))

    async def is_free() -> bool:
        return await used(cluster, tokens) == 0

    await until(is_free, timeout_s=3600)


@shared
async def test_a_reset_by_another_principal_leaves_the_pair_with_the_one_that_began_it(cluster: Cluster) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, _ = await callers(cluster, "a:1", tokens)
    assert await one_queue_by_a_member(mallory, 0) is None
    reset = pb.ResetSharesRequest(group="mine-0", resets=[pb.ShareReset(topic="mine", offset=0)])
    [result] = (await cluster.line("a:1", tokens["root"]).reset_shares(reset)).results
    assert not result.HasField("error")
    assert (await used(cluster, tokens), await used(cluster, tokens, "root")) == (1, 0)


@shared
async def test_a_refusal_does_not_reach_another_principal_that_begins_the_same_pair(cluster: Cluster) -> None:
    """Callers that wait for one beginning share it; the one that began it had its share."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    await change(cluster, grant=["allow user:victim consume mine*", "allow user:victim group mine*"])
    mallory, victim = await callers(cluster, "a:1", tokens)
    await filled(mallory, one_queue_by_a_member)
    victim.topic_of = "mine"
    first, second, third = await asyncio.gather(
        queue_begun(mallory, "mine-common"), queue_begun(victim, "mine-common"), queue_begun(mallory, "mine-common")
    )
    assert first is not None
    assert first.limit == "queue_partitions"
    assert second is None
    assert third is None or third.limit == "queue_partitions"
    assert (await used(cluster, tokens), await used(cluster, tokens, "victim")) == (MOST // 2, 1)
