"""Answer DeleteRecords: one call of the caller's API for each topic, so by its rules and quotas.

offset −1          the end
not the owner      error 6: the client looks for the partition's leader
a keyed topic      POLICY_VIOLATION, as for a legal hold
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ledgermq.errors import InvalidRequest, LedgerMQError, OffsetOutOfRange, Unauthorized, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.kafka.handlers.admin.changes import Changes
from ledgermq_broker.kafka.handlers.admin.living import living_topic
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import delete_records_request as unwanted
from ledgermq_broker.kafka.wire.generated import delete_records_response as deleted
from ledgermq_broker.kafka.wire.messages import DELETE_RECORDS, Api

END = -1
NOTHING = -1
PARTITIONS_PER_CALL = 10_000

Result = pb.DeletedRecords | LedgerMQError


def answers() -> Mapping[Api, Handler]:
    """Return the handler of each API."""
    return {DELETE_RECORDS: _delete}


async def _delete(asked: Asked) -> deleted.DeleteRecordsResponse:
    request: unwanted.DeleteRecordsRequest = asked.message
    wanted: dict[str, list[unwanted.DeleteRecordsPartition]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, []).extend(topic.partitions)
    changes = Changes(request.timeout_ms)
    answer = deleted.DeleteRecordsResponse()
    for name, partitions in wanted.items():
        results = await _of_topic(asked.api, name, partitions, changes)
        answer.topics.append(
            deleted.DeleteRecordsTopicResult(name=name, partitions=[_answered(*one) for one in results.items()])
        )
    return answer


async def _of_topic(
    api: BrokerApi, name: str, partitions: Sequence[unwanted.DeleteRecordsPartition], changes: Changes
) -> dict[int, Result]:
    """Return the result of each partition."""
    times = Counter(one.partition_index for one in partitions)
    results: dict[int, Result] = {}
    calls = []
    for one in partitions:
        try:
            if times[one.partition_index] > 1:
                raise InvalidRequest(f"partition {one.partition_index} stands more than once in the request")
            calls.append(_wish(name, one))
        except LedgerMQError as error:
            results[one.partition_index] = error
    try:
        info = await changes.make(lambda: living_topic(api, name))
        for at in range(0, len(calls), PARTITIONS_PER_CALL):
            part = calls[at : at + PARTITIONS_PER_CALL]
            call = pb.DeleteRecordsRequest(topic=name, topic_id=info.topic_id, partitions=part)
            found = await changes.make(lambda call=call: api.delete_records(call))  # type: ignore[misc]
            results |= {one.partition: result for one, result in zip(part, found.results, strict=True)}
    except LedgerMQError as error:
        for wish in calls:
            results.setdefault(wish.partition, error)
    return results


def _wish(name: str, one: unwanted.DeleteRecordsPartition) -> pb.RecordsToDelete:
    """Return what is to be deleted. Raises UnknownPartition, OffsetOutOfRange."""
    if one.partition_index < 0:
        raise UnknownPartition(f"topic {name!r} has no partition {one.partition_index}")
    if one.offset == END:
        return pb.RecordsToDelete(partition=one.partition_index, end=True)
    if one.offset < 0:
        raise OffsetOutOfRange(f"records are deleted before an offset, or all with {END}, not {one.offset}")
    return pb.RecordsToDelete(partition=one.partition_index, offset=one.offset)


def _answered(partition: int, result: Result) -> deleted.DeleteRecordsPartitionResult:
    found = deleted.DeleteRecordsPartitionResult(partition_index=partition, low_watermark=NOTHING)
    if isinstance(result, LedgerMQError):
        found.error_code = _code(result)
    elif result.HasField("error"):
        found.error_code = Code.POLICY_VIOLATION if _is_policy(result.error) else _code(error_from_proto(result.error))
    else:
        found.low_watermark = result.log_start
    return found


def _is_policy(error: pb.Error) -> bool:
    """Return whether an owner refuses what the request asks: only the topic's cleanup policy is left then."""
    return error.code == InvalidRequest.code


def _code(error: LedgerMQError) -> Code:
    if isinstance(error, Unauthorized):
        return Code.TOPIC_AUTHORIZATION_FAILED
    return code_of(error, Area.FETCH if error.retriable else Area.ADMIN)
