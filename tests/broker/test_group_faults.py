"""Groups survive coordinators with bugs, stopped processes, and partitions whose end is unknown;
in virtual time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.errors import InvalidRequest, NotOwner, Unavailable, UnknownMember
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_broker.groups.partition import PartitionCoordinator
from ledgermq_ledger import keys
from ledgermq_offsets.coordinator import GroupCoordinator
from tests.broker.cluster import Cluster, frame_of, in_cluster
from tests.broker.groups import Member, Outsider, commit_of, committed_offset, coordinator_of, settled
from tests.virtual_time import VirtualLoop
from tests.waiting import until


def coordinator(cluster: Cluster, address: str, group: str) -> PartitionCoordinator | None:
    terms = cluster.brokers[address].internal._terms.values()
    found = [term.ready.get((keys.OFFSETS_TOPIC, partition_of(group, 16))) for term in terms]
    return next((each for each in found if isinstance(each, PartitionCoordinator)), None)


@in_cluster("a:1")
async def test_a_coordinator_that_breaks_begins_again_from_its_log(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 10)
    group = Outsider(cluster, "g")
    assert await group.commit(("t", 0, 3)) == [""]
    broken = coordinator(cluster, "a:1", "g")
    assert broken is not None
    real = GroupCoordinator.commit

    def half_a_change(self: GroupCoordinator, *arguments: Any) -> Any:
        real(self, *arguments)  # its records are lost: the state is ahead of the log
        raise RuntimeError("a bug")

    broken._core.commit = half_a_change.__get__(broken._core)  # type: ignore[method-assign]
    held = asyncio.ensure_future(cluster.line("a:1").group_heartbeat(_joining("h", "m")))  # type: ignore[arg-type, var-annotated]
    await asyncio.sleep(0.1)
    epoch, counter = group.tokens["t", 0]
    with pytest.raises(Unavailable) as error:
        await cluster.line("a:1").commit_offsets(commit_of("g", ("t", 0, 9), epoch=epoch, counter=counter + 1))
    assert error.value.retry_after_ms
    await until(lambda: coordinator(cluster, "a:1", "g") not in (None, broken))
    assert await committed_offset(cluster, "g", "t", 0) == 3
    assert await group.commit(("t", 0, 4)) == [""]
    held.cancel()


def _joining(group: str, member: str) -> pb.GroupHeartbeatRequest:
    subscription = pb.GroupSubscription(topics=["t"], session_timeout_ms=10_000)
    return pb.GroupHeartbeatRequest(
        group=group, member_id=member, step=pb.JOIN, subscription=subscription, max_wait_ms=5000
    )


@in_cluster("a:1")
async def test_a_process_that_stood_still_hears_its_members_before_it_puts_them_out(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    alive, silent = Member(cluster, "g", "alive", ["t"]), Member(cluster, "g", "silent", ["t"])
    await alive.join()
    await silent.join()
    await settled([alive, silent])
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._jumping.now_s += 60  # SIGSTOP and SIGCONT
    await asyncio.sleep(1)  # its members' heartbeats lie in its sockets
    assert not await alive.beat(), "still a member, with all that it had"
    assert len(alive.owned) == 1
    await asyncio.sleep(3)
    with pytest.raises(UnknownMember):
        await silent.beat()
    await settled([alive])
    assert len(alive.owned) == 2


@in_cluster("a:1", "b:1")
async def test_a_commit_above_what_is_known_waits_for_the_partitions_owner_and_is_never_called_out_of_range(
    cluster: Cluster,
) -> None:
    await cluster.create("t", 2)
    group = Outsider(cluster, "g")
    for partition in range(2):
        await cluster.produce("t", partition, *[b"x"] * 5)
        assert await group.commit(("t", partition, 5)) == [""]
    await cluster.settled()
    mine = await coordinator_of(cluster, "g")
    other = next(address for address in cluster.brokers if address != mine)
    far = next((p for p in range(2) if cluster.serving("t", p) == [other]), None)
    if far is None:
        pytest.skip("one broker owns everything")
    await cluster.produce("t", far, b"sixth")
    cluster.network.stop_listening(other)
    epoch, counter = group.tokens["t", far]
    request = commit_of("g", ("t", far, 6), epoch=epoch, counter=counter + 1)
    answer = await cluster.line(mine).commit_offsets(request)
    assert answer.results[0].error.code in ("UNAVAILABLE", "")
    cluster.network.listen(other, cluster.brokers[other].service)
    assert await group.commit(("t", far, 6)) == [""]
    assert await group.commit(("t", far, 7)) == ["OFFSET_OUT_OF_RANGE"]


@in_cluster("a:1", "b:1")
async def test_a_topic_of_which_this_broker_has_not_heard_yet_is_not_called_unknown(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    assert await committed_offset(cluster, "g", "t", 0) is None
    names = [f"g{i}" for i in range(30)]
    controller = next(a for a, broker in cluster.brokers.items() if 0 in broker.ownership.terms.opened)
    behind = next(address for address in cluster.brokers if address != controller)
    coordinators = {name: await coordinator_of(cluster, name) for name in names}
    name = next(name for name in names if coordinators[name] == behind)
    metadata = cluster.brokers[behind].metadata
    real = metadata._apply_frame
    metadata._apply_frame = lambda frame: None  # type: ignore[method-assign]
    await cluster.line(controller).create_topic(pb.CreateTopicRequest(name="new", partitions=1))
    line = cluster.line(behind)
    wanted = pb.FetchCommittedRequest(group=name, partitions=[pb.TopicPartition(topic="new", partition=0)])
    with pytest.raises(Unavailable):
        await line.fetch_committed(wanted)
    with pytest.raises(Unavailable):
        await line.commit_offsets(commit_of(name, ("new", 0, 0)))
    metadata._apply_frame = real  # type: ignore[method-assign]
    await metadata.load()
    assert await Outsider(cluster, name).commit(("new", 0, 0)) == [""]


@in_cluster("a:1", "b:1")
async def test_an_owner_of_yesterday_refuses_no_commit(cluster: Cluster) -> None:
    """The coordinator asks the partition's former owner, which is paused and knows an older end:
    not until it has looked is it believed.
    """
    await cluster.create("t", 8)
    for partition in range(8):
        await cluster.produce("t", partition, b"x")
    await asyncio.sleep(5)
    bundles = cluster.brokers["a:1"].metadata.catalog.topics_by_name["t"].bundles
    zombie = next(
        address for address, broker in cluster.brokers.items() if broker.ownership.terms.opened.keys() & set(bundles)
    )
    other = next(address for address in cluster.brokers if address != zombie)
    partition = next(p for p, bundle in enumerate(bundles) if bundle in cluster.brokers[zombie].ownership.terms.opened)
    cluster.views[zombie].pause()
    cluster.brokers[other].ownership.report_lost(cluster.brokers[zombie].broker_id, False)
    await until(lambda: other in cluster.serving("t", partition), 20)
    await cluster.line(other).produce_once(frame_of("t", partition, b"after"))
    query = pb.OffsetQuery(topic="t", partition=partition, durable=True)
    [told] = (await cluster.line(zombie).list_offsets(pb.ListOffsetsRequest(queries=[query]))).results
    assert told.offset == 1, "a lower bound, at no request"
    asking = cluster.line(zombie).list_offsets(
        pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="t", partition=partition, latest=True)])
    )
    latest = asyncio.ensure_future(asking)  # type: ignore[arg-type, var-annotated]
    await asyncio.sleep(1)
    assert not latest.done()
    cluster.views[zombie].resume()
    assert (await latest).results[0].error.code == NotOwner.code
    assert await Outsider(cluster, "g").commit(("t", partition, 2)) == [""]
    assert keys.OFFSETS_TOPIC in cluster.brokers[other].metadata.catalog.topics_by_name


@in_cluster("a:1")
async def test_a_former_owner_refuses_nothing_for_good_whatever_the_refusal_says(cluster: Cluster) -> None:
    """A request may be wrong only for what the state says: here the member joined again, with an instance id, at an
    owner of which this one has not heard. So an invalid request is refused after a fence check, as all others are.
    """
    await cluster.create("t", 1)
    line = cluster.line("a:1")
    await line.group_heartbeat(_joining("g", "m"))
    leaving = pb.GroupHeartbeatRequest(group="g", member_id="m", step=pb.LEAVE_FOR_A_WHILE)
    unknown = pb.GroupHeartbeatRequest(group="g", member_id="m", step=99)  # type: ignore[arg-type]
    for wrong in (leaving, unknown):
        with pytest.raises(InvalidRequest):
            await line.group_heartbeat(wrong)
    found = coordinator(cluster, "a:1", "g")
    assert found is not None
    looks: list[str] = []

    async def fenced() -> None:
        looks.append("look")
        raise NotOwner("another broker has the bundle")

    found.owner.check_fence = fenced  # type: ignore[method-assign]
    for wrong in (leaving, unknown):
        with pytest.raises(NotOwner):
            await found.heartbeat(wrong)
    assert len(looks) == 2
