"""The topics that share groups name by their ids, as one connection has learned them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ledgermq.client.messages.expiry import TopicTtl, ttl_in_force
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.asked import named_topics
from ledgermq_broker.kafka.handlers.shares.acknowledging import Topic
from ledgermq_ledger import keys

KEPT_MAX = 10_000
LOOK_PAUSE_S = 1.0
"""Until an id that no topic has is looked for again."""
TTL_AGE_S_MAX = 10.0
"""Until a topic is asked again how long its messages live."""


class TopicNames:
    """A topic keeps its id and its name until it is deleted, and no other topic ever has its id."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[bytes, Topic] = {}
        self._absent: dict[bytes, float] = {}
        """Ids that no topic had, and when they may be looked for again."""
        self._ttls: dict[str, tuple[float, TopicTtl | None]] = {}
        """By name: how long messages live, and until when that is taken for true."""

    async def learn(self, api: BrokerApi, uuids: Iterable[bytes]) -> None:
        """Ask for those that are not known yet, all at once. Raises what DescribeTopics raises."""
        now_s = asyncio.get_running_loop().time()
        self._absent = {uuid: until_s for uuid, until_s in self._absent.items() if until_s > now_s}
        wanted = {
            uuid
            for uuid in uuids
            if uuid not in self._known and uuid not in self._absent and self._brokers.topic_id(uuid) is not None
        }
        if not wanted:
            return
        if len(self._known) + len(wanted) > KEPT_MAX:
            self._known.clear()
        found = await api.describe_topics(pb.DescribeTopicsRequest())
        for info in found.topics:
            uuid = self._brokers.topic_uuid(info.topic_id)
            if uuid in wanted and not info.HasField("error") and not keys.is_internal(info.name):
                self._known[uuid] = Topic(info.topic_id, info.name)

        self._absent |= {uuid: now_s + LOOK_PAUSE_S for uuid in wanted if uuid not in self._known}

    def of(self, uuid: bytes) -> Topic | None:
        """Return the topic; None if there is none that the caller may see."""
        return self._known.get(uuid)

    async def ttls(self, api: BrokerApi, names: Iterable[str]) -> dict[str, TopicTtl | None]:
        """Return how long messages of topics live. Raises what DescribeTopics raises."""
        now_s = asyncio.get_running_loop().time()
        self._ttls = {name: known for name, known in self._ttls.items() if known[0] > now_s}
        wanted = list(dict.fromkeys(names))
        for name, info in (await named_topics(api, (name for name in wanted if name not in self._ttls))).items():
            if not info.HasField("error"):
                ttl = ttl_in_force(info.message_ttl_ms, info.message_ttl_ms_max)
                self._ttls[name] = now_s + TTL_AGE_S_MAX, ttl
        return {name: self._ttls[name][1] for name in wanted if name in self._ttls}
