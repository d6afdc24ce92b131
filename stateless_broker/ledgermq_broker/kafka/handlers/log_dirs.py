"""Answer DescribeLogDirs: one directory, with the bytes that are stored of each partition that this broker leads.

A partition that is about to move, and topics that the caller may not describe, are left out. The size of the store
is not known: −1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import Asked, Handler, named_topics
from ledgermq_broker.kafka.handlers.offsets import ask
from ledgermq_broker.kafka.wire.generated import describe_log_dirs_response as described
from ledgermq_broker.kafka.wire.messages import DESCRIBE_LOG_DIRS, Api

DIRECTORY = "ledgermq"


def answers(brokers: Brokers) -> Mapping[Api, Handler]:
    async def describe(asked: Asked) -> Any:
        return await _describe(asked, brokers)

    return {DESCRIBE_LOG_DIRS: describe}


async def _describe(asked: Asked, brokers: Brokers) -> described.DescribeLogDirsResponse:
    chosen: dict[str, set[int]] | None = None if asked.message.topics is None else {}
    for topic in asked.message.topics or ():
        assert chosen is not None
        chosen.setdefault(topic.topic, set()).update(topic.partitions)
    places = [
        (info.name, number)
        for info in await _infos(asked, None if chosen is None else [*chosen])
        for number, partition in enumerate(info.partitions)
        if (chosen is None or number in chosen[info.name]) and brokers.leads(partition)
    ]
    queries = [pb.OffsetQuery(topic=name, partition=number, earliest=True, stored=True) for name, number in places]
    sizes: dict[str, list[described.DescribeLogDirsPartition]] = {}
    for (name, number), found in zip(places, await ask(asked.api, queries), strict=True):
        if not found.HasField("error"):
            sized = described.DescribeLogDirsPartition(number, found.stored_bytes)
            sizes.setdefault(name, []).append(sized)
    topics = [described.DescribeLogDirsTopic(name, partitions) for name, partitions in sizes.items()]
    return described.DescribeLogDirsResponse(
        results=[described.DescribeLogDirsResult(log_dir=DIRECTORY, topics=topics)]
    )


async def _infos(asked: Asked, names: list[str] | None) -> list[pb.TopicInfo]:
    """Return those of these topics that exist and that the caller may see. None: all that it may see."""
    if names is None:
        return list((await asked.api.describe_topics(pb.DescribeTopicsRequest())).topics)
    return [info for info in (await named_topics(asked.api, names)).values() if not info.HasField("error")]
