"""Brokers and leaders as clients of the Kafka protocol see them.

    node            the number that a broker drew, from its heartbeat
    leader          the owner of the partition's bundle, if clients of this protocol reach it
    leader epoch    moves of the partition so far × 2**20 + epoch of the bundle's term

A partition's epoch never goes back, and names one leader: each term of a bundle has one owner, and a
move counts more than any term. So a client that was shown a former owner takes the later one's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import KAFKA_RENEWALS, KAFKA_SHARES
from ledgermq_broker.cluster.membership import Membership
from ledgermq_broker.internal.bundle_calls import BundleCalls

TERM_BITS = 20
MOVES_MAX = 2**11 - 1
NO_EPOCH = -1
NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    """A broker that clients of the Kafka protocol reach."""

    node: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class Offers:
    """`renewals`: the second protocol of transactions. `share_groups`: the requests of share groups."""

    renewals: bool = False
    share_groups: bool = False


@dataclass(frozen=True, slots=True)
class Leader:
    """`node`: NO_LEADER if there is none, or none that these clients reach. `is_known`: a broker owns the partition."""

    node: int
    epoch: int
    is_known: bool


def leader_epoch(moves: int, term: int) -> int:
    """Return the epoch of a partition's leader; NO_EPOCH beyond the bounds, which clients take after any epoch."""
    if moves > MOVES_MAX or term >= 1 << TERM_BITS:
        return NO_EPOCH
    return moves << TERM_BITS | term


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of host:port or [host]:port. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Brokers:
    """`cluster_id`: 32 hexadecimal digits. `catalog_offset()`: grows with each change of topics and access rules that
    this broker has read. `calls`: to the owners of bundles, by this broker's own right.
    """

    def __init__(
        self,
        membership: Membership,
        directory: Directory,
        cluster_id: str,
        catalog_offset: Callable[[], int],
        calls: BundleCalls,
    ) -> None:
        self.at_owner = calls.at
        self._membership = membership
        self._directory = directory
        self.cluster_id = cluster_id
        self.catalog_offset = catalog_offset

    @property
    def me(self) -> int:
        """Return the node of this broker."""
        return self._membership.me.kafka_node

    @property
    def offers(self) -> Offers:
        """Return what clients may use: every broker that is there knows it."""
        lacking = self._membership.lacking
        return Offers(renewals=not lacking(KAFKA_RENEWALS), share_groups=not lacking(KAFKA_SHARES))

    def leads(self, partition: pb.PartitionInfo) -> bool:
        """Return whether this broker owns a partition."""
        return partition.owner == self._membership.me.address

    def is_me(self, address: str) -> bool:
        """Return whether this broker has this address among brokers."""
        return address == self._membership.me.address

    def present(self) -> list[KafkaBroker]:
        """Return the brokers that clients reach, ascending by node."""
        found = []
        for heartbeat in self._membership.present().values():
            if heartbeat.kafka_node and heartbeat.kafka_address:
                try:
                    host, port = host_and_port(heartbeat.kafka_address)
                except ValueError:
                    continue
                found.append(KafkaBroker(heartbeat.kafka_node, host, port, heartbeat.rack or None))
        return sorted(found, key=lambda broker: broker.node)

    def at(self, address: str) -> KafkaBroker | None:
        """Return the broker with this address among brokers; None if clients do not reach it."""
        present = self._membership.present().values()
        node = next((heartbeat.kafka_node for heartbeat in present if heartbeat.address == address), 0)
        return next((broker for broker in self.present() if broker.node == node), None)

    def unreachable(self) -> list[str]:
        """Return the addresses of brokers whose partitions these clients do not reach."""
        present = self._membership.present().values()
        return sorted(heartbeat.address for heartbeat in present if not heartbeat.kafka_address)

    def leader(self, partition: pb.PartitionInfo) -> Leader:
        """Return the leader of a partition, both parts from one look at the owners."""
        owner = self._directory.owners.get(partition.bundle)
        if owner is None:
            claims = self._directory.claims.get(partition.bundle)
            return Leader(NO_LEADER, leader_epoch(partition.moves, claims.epoch if claims else 0), False)
        heartbeat = self._membership.present().get(owner.broker)
        node = heartbeat.kafka_node if heartbeat is not None else 0
        return Leader(node or NO_LEADER, leader_epoch(partition.moves, owner.epoch), True)

    def topic_uuid(self, topic_id: int) -> bytes:
        """Return a topic's id as these clients know it. Topics of one name that follow each other differ."""
        return bytes.fromhex(self.cluster_id)[:8] + (topic_id + 1).to_bytes(8, "big")

    def topic_id(self, uuid: bytes) -> int | None:
        """Return our id of a topic; None if the UUID is of no topic of this cluster."""
        if uuid[:8] != bytes.fromhex(self.cluster_id)[:8]:
            return None
        return int.from_bytes(uuid[8:], "big") - 1
