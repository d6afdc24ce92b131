"""Brokers that clients and other brokers reach by different addresses, like containers with
published ports.
"""

from __future__ import annotations

import asyncio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.broker import Broker
from ledgermq_broker.cluster.peers import Peers
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until

SILENT_S = 5.0
"""Ten heartbeats of the settings FAST: how long a broker's death would go unnoticed without a line
to it.
"""


async def start(cluster: Cluster, inside: Network, name: str, port: int) -> Broker:
    """Clients reach it at localhost:PORT by the cluster's network, brokers at NAME:9650 by theirs;
    neither sees the other one.
    """
    settings = cluster.settings.model_copy(update={"broker_id": name, "peer_address": f"{name}:9650"})
    address, connector = f"localhost:{port}", InProcessConnector(inside)
    broker = await Broker.start(cluster.store, virtual_sources(port), settings, address, connector, run_inline)
    inside.listen(f"{name}:9650", broker.service)
    cluster.network.listen(address, broker.service)
    cluster.brokers[address] = broker
    return broker


@virtual
async def test_brokers_work_together_where_only_clients_reach_what_is_advertised() -> None:
    cluster, inside = Cluster(MemoryStore()), Network()
    brokers = [await start(cluster, inside, name, port) for name, port in (("a", 9650), ("b", 9660), ("c", 9670))]
    await cluster.settled()
    for broker in brokers:  # two of them have to ask the controller
        topic = await broker.service.create_topic(
            pb.CreateTopicRequest(name=f"made-at-{broker.broker_id}", partitions=4)
        )
        assert topic.topic.name
    for partition in range(4):
        await cluster.produce("made-at-a", partition, b"value")  # follows NOT_OWNER to advertised addresses
    lost = brokers[0]
    owned, begun = set(lost.ownership.terms.opened), asyncio.get_running_loop().time()
    assert owned
    inside.stop_listening("a:9650")
    await cluster.stop(lost.address, graceful=False)
    await until(
        lambda: owned <= {bundle for broker in cluster.brokers.values() for bundle in broker.ownership.terms.opened}
    )
    assert asyncio.get_running_loop().time() - begun < SILENT_S / 2, "its peer address refused, which is proof enough"
    await cluster.close()


@virtual
async def test_a_line_follows_a_broker_to_its_new_peer_address() -> None:
    peers = Peers(InProcessConnector(Network()), 1.0, lambda _broker, _refused: None)
    assert peers.connection("localhost:1").address == "localhost:1", "nothing is known yet"
    peers.watch({"a": "localhost:1", "b": "localhost:2"}, {"localhost:1": "old:1"})
    assert peers.connection("localhost:1").address == "old:1"
    kept = peers.connection("localhost:2")
    peers.watch({"a": "localhost:1", "b": "localhost:2"}, {"localhost:1": "new:1"})
    assert peers.connection("localhost:1").address == "new:1"
    assert peers.connection("localhost:2") is kept
    await peers.close()
