"""Answer CreateTopics, CreatePartitions and DeleteTopics: each topic by one call of the caller's API, so by its
rules and quotas.

settings           see `topic_settings`
replicas           any positive number, or the default; a topic has one
assignments        only their number counts
validate_only      the same checks, by the newest catalog
a deleted topic    keeps its name during its grace, so creating it again says that it exists; for these clients
                   it does not, so deleting it again says that it is unknown
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ledgermq.errors import InvalidRequest, LedgerMQError, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.admin.changes import Changes, topic_code
from ledgermq_broker.kafka.handlers.admin.living import living_topic
from ledgermq_broker.kafka.handlers.admin.topic_settings import outside, taken
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import create_partitions_request as asked_partitions
from ledgermq_broker.kafka.wire.generated import create_partitions_response as grown
from ledgermq_broker.kafka.wire.generated import create_topics_request as asked_topics
from ledgermq_broker.kafka.wire.generated import create_topics_response as created
from ledgermq_broker.kafka.wire.generated import delete_topics_request as unwanted
from ledgermq_broker.kafka.wire.generated import delete_topics_response as deleted
from ledgermq_broker.kafka.wire.messages import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, Api

DEFAULT = -1
SET_ON_THE_TOPIC = 1
"""Kafka's number for where a setting comes from."""


def answers(brokers: Brokers, sources: Sources) -> Mapping[Api, Handler]:
    """Return the handler of each API."""

    async def create(asked: Asked) -> Any:
        return await _create(asked, brokers, sources)

    async def delete(asked: Asked) -> Any:
        return await _delete(asked, brokers)

    async def grow(asked: Asked) -> Any:
        return await _grow(asked, brokers, sources)

    return {CREATE_TOPICS: create, CREATE_PARTITIONS: grow, DELETE_TOPICS: delete}


async def _create(asked: Asked, brokers: Brokers, sources: Sources) -> created.CreateTopicsResponse:
    request: asked_topics.CreateTopicsRequest = asked.message
    times = Counter(topic.name for topic in request.topics)
    changes = Changes(request.timeout_ms)
    answer = created.CreateTopicsResponse()
    for topic in {topic.name: topic for topic in request.topics}.values():
        found = created.CreatableTopicResult(name=topic.name, error_message=None)
        try:
            if times[topic.name] > 1:
                raise InvalidRequest(f"topic {topic.name!r} stands {times[topic.name]} times in the request")
            found.error_code, found.error_message = _refusal(topic)
            if not found.error_code:
                wish = _wish(topic, sources, dry_run=request.validate_only)
                info = (await changes.make(lambda wish=wish: asked.api.create_topic(wish))).topic  # type: ignore[misc]
                _made(found, info, brokers, dry_run=request.validate_only)
        except LedgerMQError as error:
            found.error_code, found.error_message = topic_code(error), error.message
        answer.topics.append(found)
    return answer


def _refusal(topic: asked_topics.CreatableTopic) -> tuple[Code, str | None]:
    """Return why the numbers of a topic mean nothing; NONE if they do."""
    if topic.assignments:
        if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
            return Code.INVALID_REQUEST, "with assignments, both numbers have to be -1"
        if sorted(one.partition_index for one in topic.assignments) != list(range(len(topic.assignments))):
            return Code.INVALID_REPLICA_ASSIGNMENT, "the assignments have to number the partitions from 0 on"
    elif topic.num_partitions < 1 and topic.num_partitions != DEFAULT:
        return Code.INVALID_PARTITIONS, f"a topic cannot have {topic.num_partitions} partitions"
    elif topic.replication_factor < 1 and topic.replication_factor != DEFAULT:
        return Code.INVALID_REPLICATION_FACTOR, f"a partition cannot have {topic.replication_factor} replicas"
    return Code.NONE, None


def _wish(topic: asked_topics.CreatableTopic, sources: Sources, *, dry_run: bool) -> pb.CreateTopicRequest:
    """Return the call that creates a topic. Raises InvalidConfig."""
    return pb.CreateTopicRequest(
        name=topic.name,
        partitions=len(topic.assignments) or max(0, topic.num_partitions),
        settings=taken((one.name, one.value) for one in topic.configs),
        nonce=sources.random.getrandbits(128).to_bytes(16, "big"),
        dry_run=dry_run,
    )


def _made(found: created.CreatableTopicResult, info: pb.TopicInfo, brokers: Brokers, *, dry_run: bool) -> None:
    if not dry_run:
        found.topic_id = brokers.topic_uuid(info.topic_id)
    found.num_partitions, found.replication_factor = len(info.partitions), 1
    found.configs = [
        created.CreatableTopicConfigs(name=name, value=outside(name, value), config_source=SET_ON_THE_TOPIC)
        for name, value in sorted(info.settings.items())
    ]


async def _grow(asked: Asked, brokers: Brokers, sources: Sources) -> grown.CreatePartitionsResponse:
    request: asked_partitions.CreatePartitionsRequest = asked.message
    times = Counter(topic.name for topic in request.topics)
    changes = Changes(request.timeout_ms)
    answer = grown.CreatePartitionsResponse()
    for topic in {topic.name: topic for topic in request.topics}.values():
        found = grown.CreatePartitionsTopicResult(name=topic.name)
        try:
            if times[topic.name] > 1:
                raise InvalidRequest(f"topic {topic.name!r} stands {times[topic.name]} times in the request")
            info = await changes.make(lambda name=topic.name: living_topic(asked.api, name))  # type: ignore[misc]
            found.error_code, found.error_message = _no_growth(topic, len(info.partitions))
            if not found.error_code:
                wish = pb.AlterTopicRequest(
                    name=info.name,
                    topic_id=info.topic_id,
                    partitions=topic.count,
                    nonce=sources.random.getrandbits(128).to_bytes(16, "big"),
                    dry_run=request.validate_only,
                )
                await changes.make(lambda wish=wish: asked.api.alter_topic(wish))  # type: ignore[misc]
        except LedgerMQError as error:
            found.error_code, found.error_message = topic_code(error), error.message
        answer.results.append(found)
    return answer


def _no_growth(topic: asked_partitions.CreatePartitionsTopic, before: int) -> tuple[Code, str | None]:
    """Return why a topic with so many partitions cannot get those; NONE if it can."""
    if topic.count <= before:
        return (
            Code.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {before} partitions; their number may only grow",
        )
    if topic.assignments is not None and len(topic.assignments) != topic.count - before:
        return Code.INVALID_REPLICA_ASSIGNMENT, f"{topic.count - before} partitions are added: give as many assignments"
    return Code.NONE, None


async def _delete(asked: Asked, brokers: Brokers) -> deleted.DeleteTopicsResponse:
    request: unwanted.DeleteTopicsRequest = asked.message
    wanted = request.topics or [unwanted.DeleteTopicState(name=name) for name in request.topic_names]
    changes = Changes(request.timeout_ms)
    names = Counter(one.name for one in wanted if one.name is not None)
    ids = Counter(one.topic_id for one in wanted if one.name is None)
    answer = deleted.DeleteTopicsResponse()
    for one in {(one.name, one.topic_id): one for one in wanted}.values():
        found = deleted.DeletableTopicResult(name=one.name, topic_id=one.topic_id, error_message=None)
        try:
            if (ids[one.topic_id] if one.name is None else names[one.name]) > 1:
                raise InvalidRequest("this topic stands more than once in the request")
            info = await changes.make(lambda one=one: _living(asked.api, one, brokers))  # type: ignore[misc]
            wish = pb.DeleteTopicRequest(name=info.name, topic_id=info.topic_id)
            await changes.make(lambda wish=wish: asked.api.delete_topic(wish))  # type: ignore[misc]
            found.name, found.topic_id = info.name, brokers.topic_uuid(info.topic_id)
        except LedgerMQError as error:
            found.error_code, found.error_message = topic_code(error), error.message
            if one.name is None and isinstance(error, UnknownTopic):
                found.error_code = Code.UNKNOWN_TOPIC_ID
        answer.responses.append(found)
    return answer


async def _living(api: BrokerApi, wanted: unwanted.DeleteTopicState, brokers: Brokers) -> pb.TopicInfo:
    """Return the topic that is meant, as the controller knows it now. Raises UnknownTopic for one that is deleted,
    too, though it can be brought back; Unauthorized.
    """
    if wanted.name is None:
        number = brokers.topic_id(wanted.topic_id)
        listed = await api.describe_topics(pb.DescribeTopicsRequest()) if number is not None else None
        for info in listed.topics if listed is not None else ():
            if info.topic_id == number:
                return info
        raise UnknownTopic(f"no topic has the id {wanted.topic_id.hex()}: list the topics again")
    return await living_topic(api, wanted.name)
