"""Topics with a backlog quota: fill them, and see what producers are told."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.backlogs.quotas import ASK_S_MAX, CHECK_S
from tests.broker.cluster import Cluster, frame_of

KIB = 1024
SOON_S = 2 * CHECK_S + ASK_S_MAX


def quota(policy: str = "", bytes_max: int | None = 10 * KIB, ms_max: int | None = None) -> dict[str, str]:
    given = {"backlog_quota_bytes": bytes_max, "backlog_quota_ms": ms_max, "backlog_quota_policy": policy or None}
    return {name: str(value) for name, value in given.items() if value is not None}


async def fill(cluster: Cluster, count: int = 12) -> None:
    """A kibibyte each."""
    for number in range(count):
        await cluster.produce("t", 0, b"%d " % number + bytes(KIB))


async def refusal(cluster: Cluster) -> pb.Error | None:
    """What a producer gets at the owner of the partition."""
    line = cluster.line(await cluster.owner_of("t", 0))
    [result] = (await line.produce_once(frame_of("t", 0, b"x"))).results
    return result.error if result.HasField("error") else None
