"""What members of share groups may take: places for their sessions, and bytes of their quota. In virtual time."""

from __future__ import annotations

import asyncio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.shares.sessions import Room
from ledgermq_broker.kafka.wire.errors import Code
from tests.broker.access import RULES, change
from tests.broker.kafka_sharers import Got, Sharer, SharerLine
from tests.broker.kafka_world import KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic
from tests.broker.test_kafka_share_groups import EARLIEST, produce, sharer, values

VALUE_BYTES, BYTES_S = 10_000, 10_000


@in_kafka_cluster("a:1", **EARLIEST)
async def test_sessions_of_all_connections_share_places_and_leave_them_with_the_connection(
    cluster: KafkaCluster,
) -> None:
    await cluster.create("t", partitions=3)
    await produce(cluster, b"0")
    cluster.share_rooms[cluster.brokers["a:1"]] = Room(8)
    member = await sharer(cluster)

    def line(host: str) -> SharerLine:
        return SharerLine(member, cluster.connect("a:1", host))

    one, two, stranger = line("10.0.0.1"), line("10.0.0.1"), line("10.0.0.2")
    assert values(await one.fetch(0, 1, 2)) == [b"0"]
    assert (await two.ask(0)).error_code == Code.SHARE_SESSION_LIMIT_REACHED
    assert await stranger.fetch(0) == [], "another host has its share"
    assert (await one.ask(0, 1, 2, epoch=0)).error_code == 0, "one that is there may begin again"
    await one.client.close()
    again = line("10.0.0.1")
    assert [(got.value, got.deliveries) for got in await again.fetch(0, 1, 2)] == [(b"0", 2)]
    assert (await again.ask(epoch=-1)).error_code == 0
    assert await line("10.0.0.1").fetch(0, 1, 2) != [], "one that ended has left its places, and its message"


@in_kafka_cluster("a:1", **RULES, **EARLIEST)
async def test_the_quota_of_a_principal_slows_its_members_alone(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    rights = ("group g", "group other", "produce,consume,describe t")
    await change(cluster, grant=[f"allow user:{user} {right}" for user in ("ann", "bob") for right in rights])
    service = cluster.brokers["a:1"].service
    await service.change_quota(pb.ChangeQuotaRequest(principal="user:ann", set={"bytes_out": BYTES_S}))
    writer = await proven(cluster, "bob")
    for number in range(12):
        batch = batch_of(b"%d " % number + bytes(VALUE_BYTES))
        assert (await writer.produce("t", 0, batch)).error_code == 0
    loop = asyncio.get_running_loop()

    async def read(user: str, group: str) -> float:
        """Return how long it takes to read all messages, one at a time."""
        begun_s, found = loop.time(), list[Got]()
        member = Sharer(cluster, group)
        member.client = await proven(cluster, user)
        assert (await member.beat(says_all=True)).error_code == 0
        line = SharerLine(member, await proven(cluster, user))
        asked = [0]
        while len(found) < 12:
            got = await line.fetch(*asked, wait_ms=500, records=1)
            asked = []
            if got:
                assert await line.accept(*got) == {0: 0}
            found += got
        assert [one.offset for one in found] == list(range(12)), "each once, and in order"
        return loop.time() - begun_s

    slow_s, quick_s = await asyncio.gather(read("ann", "g"), read("bob", "other"))
    assert quick_s < 2.0
    assert 8.0 < slow_s < 30.0, "twelve seconds of bytes, of which the first came at once"
