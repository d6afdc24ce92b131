"""Descriptions of a cluster and its topics, as plain frozen values; checks of the topic names and
partition numbers that a program gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from ledgermq.errors import InvalidConfig, InvalidTopicName, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb


class TopicPartition(NamedTuple):
    """One partition of a topic, by the topic's name; printed like "orders/0"."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionHolder:
    """The exclusive producer that has a partition for itself. `name`: that it gave itself. `lease_s`: how long it
    keeps others from the partition unless it renews; 0: another one may take its place. `changes`: the number
    of the holder's last change, which rises with each change, and jumps when the partition moves to another bundle.
    """

    partition: int
    name: str
    lease_s: float
    changes: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`owner`: address of the broker that serves it, empty when no broker does at present. `moving_from`: the bundle
    that it has not quite left; None: it is not moving.
    """

    partition: int
    bundle: int
    owner: str
    moving_from: int | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`settings`: those that were set; all others have their default. `deleted_ms`, `kept_until_ms`: of a topic
    that is deleted and can be brought back, when it was deleted and until when it is kept, in milliseconds since
    the epoch; 0 otherwise.
    """

    name: str
    topic_id: int
    partitions: tuple[PartitionDescription, ...]
    settings: Mapping[str, str]
    created_ms: int
    deleted_ms: int = 0
    kept_until_ms: int = 0

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """`draining`: an operator has drained it; it serves what no other broker has taken yet."""

    id: str
    address: str
    alive: bool
    draining: bool = False


@dataclass(frozen=True, slots=True)
class BundleDescription:
    """`trouble`: why the bundle refuses to serve; empty if it serves. `load`: bytes produced and fetched in a
    second, each request counted as 64 KiB, on the average of some minutes; 0 if it is idle, or brokers do not
    announce it.
    """

    bundle: int
    owner: str
    epoch: int
    trouble: str
    load: int = 0


@dataclass(frozen=True, slots=True)
class BundleLoads:
    """What a bundle costs its owner now: bytes produced and fetched in a second, each request counted as 64 KiB,
    with a half-life of a minute.

    `partitions`: of the topics that `list_topics` returns, without those below 1 KiB/s. `others`: that of all other
    partitions together; they belong to topics of the system. `measured_s`: for how many seconds the owner has
    measured; 0: it has just begun, and knows no loads. While a partition moves between bundles, its load is the sum
    of what both have.
    """

    bundle: int
    measured_s: float
    partitions: Mapping[TopicPartition, int]
    others: int


@dataclass(frozen=True, slots=True)
class AddedBundles:
    """What a call added. Both numbers have bundle 0 in them. `before`: how many bundles the cluster would have without
    this call. `after`: how many it has; with a dry run, how many it would have.
    """

    before: int
    after: int

    @property
    def added(self) -> int:
        """How many this call itself added."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`version`: of the broker that answered. `controller`: address of the owner of bundle 0, if
    known. `problems`: why the cluster is not healthy; empty if it is.
    """

    cluster_id: str
    root: str
    brokers: tuple[BrokerDescription, ...]
    bundles: tuple[BundleDescription, ...]
    version: str
    controller: str
    problems: tuple[str, ...] = ()


def check_topic_text(name: object) -> str:
    """Check only that the name can be sent; brokers check the rest. Raises InvalidTopicName."""
    if not isinstance(name, str):
        raise InvalidTopicName(f"a topic's name must be text, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidTopicName(f"a topic's name must be valid Unicode text: {error}") from error
    return name


def check_partition(partition: object, partitions: int, topic: str) -> int:
    """Check a partition that a user, or a user's partitioner, chose. Raises UnknownPartition,
    InvalidConfig.
    """
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidConfig(f"a partition must be a whole number, not {partition!r}")
    if not 0 <= partition < partitions:
        raise UnknownPartition(f"topic {topic} has partitions 0 to {partitions - 1}, not {partition}")
    return partition


def topic_description(info: pb.TopicInfo) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(number, part.bundle, part.owner, part.moving_from or None)
        for number, part in enumerate(info.partitions)
    )
    return TopicDescription(
        info.name,
        info.topic_id,
        partitions,
        dict(info.settings),
        info.created_ms,
        info.deleted_ms,
        info.kept_until_ms,
    )


def cluster_description(answer: pb.DescribeClusterResponse) -> ClusterDescription:
    problems = list(answer.problems)
    if not problems:  # brokers of earlier releases report only troubles
        problems = [
            f"bundle {bundle.bundle} is in trouble: {bundle.trouble}" for bundle in answer.bundles if bundle.trouble
        ]
    return ClusterDescription(
        answer.cluster_id,
        answer.root,
        tuple(BrokerDescription(broker.id, broker.address, broker.alive, broker.draining) for broker in answer.brokers),
        tuple(
            BundleDescription(bundle.bundle, bundle.owner, bundle.epoch, bundle.trouble, bundle.load)
            for bundle in answer.bundles
        ),
        answer.version,
        answer.controller,
        tuple(problems),
    )
