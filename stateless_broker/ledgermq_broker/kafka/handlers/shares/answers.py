"""Put together the answers to ShareFetch and ShareAcknowledge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledgermq import errors
from ledgermq.errors import LedgerMQError
from ledgermq_broker.kafka.handlers.shares.acknowledging import Heard
from ledgermq_broker.kafka.handlers.shares.converting import Sent
from ledgermq_broker.kafka.handlers.shares.leases import Place
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import share_acknowledge_response as acknowledged
from ledgermq_broker.kafka.wire.generated import share_fetch_response as fetched

NO_LEADER, NO_EPOCH = -1, -1
"""A client asks for the leader with Metadata."""
OF_PARTITIONS = frozenset(
    {
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_ID,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.KAFKA_STORAGE_ERROR,
    }
)
"""Codes that Java's client takes for a partition. It goes on after UNKNOWN_SERVER_ERROR, and writes it to its log; at
any other code it stops.
"""


def partition_code(error: LedgerMQError) -> Code:
    """Return the code of a partition that cannot be read."""
    if isinstance(error, errors.UnknownTopic | errors.TopicBeingDeleted):
        return Code.UNKNOWN_TOPIC_ID
    code = code_of(error, Area.FETCH)
    return code if code in OF_PARTITIONS else Code.UNKNOWN_SERVER_ERROR


def fetched_partition(place: Place, sent: Sent | LedgerMQError | None, heard: Heard | None) -> fetched.PartitionData:
    """Return what a client gets of one partition."""
    part = fetched.PartitionData(
        partition_index=place.partition,
        current_leader=fetched.LeaderIdAndEpoch(NO_LEADER, NO_EPOCH),
        records=b"",
    )
    if heard is not None:
        part.acknowledge_error_code, part.acknowledge_error_message = heard.code, heard.message
    if isinstance(sent, LedgerMQError):
        part.error_code, part.error_message = partition_code(sent), sent.message
    elif sent is not None:
        part.records = sent.records or b""
        part.acquired_records = [fetched.AcquiredRecords(one.first, one.last, one.deliveries) for one in sent.ranges]
    return part


def fetch_answer(parts: Iterable[tuple[Place, fetched.PartitionData]], lock_ms: int) -> fetched.ShareFetchResponse:
    topics: dict[bytes, list[fetched.PartitionData]] = {}
    for place, part in parts:
        topics.setdefault(place.topic_id, []).append(part)
    return fetched.ShareFetchResponse(
        acquisition_lock_timeout_ms=lock_ms,
        responses=[fetched.ShareFetchableTopicResponse(topic_id, found) for topic_id, found in topics.items()],
    )


def acknowledge_answer(heard: Mapping[Place, Heard]) -> acknowledged.ShareAcknowledgeResponse:
    topics: dict[bytes, list[acknowledged.PartitionData]] = {}
    for place, one in heard.items():
        topics.setdefault(place.topic_id, []).append(
            acknowledged.PartitionData(
                partition_index=place.partition,
                error_code=one.code,
                error_message=one.message,
                current_leader=acknowledged.LeaderIdAndEpoch(NO_LEADER, NO_EPOCH),
            )
        )
    return acknowledged.ShareAcknowledgeResponse(
        responses=[acknowledged.ShareAcknowledgeTopicResponse(topic_id, found) for topic_id, found in topics.items()]
    )
