"""What of a cluster's transactions can be seen."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.partition import TransactionPartition
from tests.broker.cluster import Cluster
from tests.broker.groups import committed_offset
from tests.broker.transaction_calls import code_of

BUNDLES = {"bundles": 4}


def owner_of_bundle(cluster: Cluster, bundle: int) -> str:
    return next(address for address, broker in cluster.brokers.items() if bundle in broker.ownership.opened)


async def is_served(cluster: Cluster, topic: str, records: int) -> bool:
    return len(cluster.serving(topic, 0)) == 1 and len(await cluster.read_all(topic, 0)) == records


async def is_free(cluster: Cluster, group: str, topic: str) -> bool:
    return await code_of(lambda: committed_offset(cluster, group, topic, 0)) == ""


def xid(name: str) -> pb.EndTransactionRequest:
    """Commit a prepared transaction by its id alone."""
    return pb.EndTransactionRequest(transaction=pb.TransactionRef(transactional_id=name), outcome=pb.COMMITTED)


def log_start(found: TransactionPartition) -> int:
    staged = found._staged
    return staged.owner._ledger.view.log_start(staged.place, staged.topic)
