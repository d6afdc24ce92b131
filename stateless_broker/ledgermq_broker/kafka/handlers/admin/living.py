"""Find topics as the controller knows them now. A deleted one is unknown to these clients, though it can be brought
back.
"""

from __future__ import annotations

from ledgermq.errors import TopicBeingDeleted, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq_ledger import keys


async def living_topic(api: BrokerApi, name: str) -> pb.TopicInfo:
    """Return a topic. Raises UnknownTopic, Unauthorized, Unavailable."""
    if keys.is_internal(name):
        raise UnknownTopic(f"topic {name!r} does not exist")
    [info] = (await api.describe_topics(pb.DescribeTopicsRequest(topics=[name], fresh=True))).topics
    return living(info)


def living(info: pb.TopicInfo) -> pb.TopicInfo:
    """Return what was answered for a topic. Raises the error that was answered, UnknownTopic for a deleted one."""
    if info.HasField("error"):
        error = error_from_proto(info.error)
        raise UnknownTopic(error.message) if isinstance(error, TopicBeingDeleted) else error
    return info
