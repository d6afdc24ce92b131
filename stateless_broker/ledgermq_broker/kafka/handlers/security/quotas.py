"""Answer DescribeClientQuotas and AlterClientQuotas by the caller's own calls about quotas (`entities`).

An entry is one change, which is in force at all brokers when it is answered. `validate_only` makes the same checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from ledgermq_broker.access.state.quotas import Subject
from ledgermq_broker.kafka.handlers.admin.changes import Changes
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.security.acls import TIMEOUT_MS, refusal_of
from ledgermq_broker.kafka.handlers.security.entities import Change, Filter, change_of, shown, values
from ledgermq_broker.kafka.wire.generated import alter_client_quotas_response as altered
from ledgermq_broker.kafka.wire.generated import describe_client_quotas_response as described
from ledgermq_broker.kafka.wire.messages import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS, Api

ENTRIES_MAX = 1000
"""Changes in a request, each of which is stored before the next."""


def answers(sources: Sources) -> Mapping[Api, Handler]:
    """Return the handler of each API."""

    async def alter(asked: Asked) -> Any:
        return await _alter(asked, sources)

    return {DESCRIBE_CLIENT_QUOTAS: _describe, ALTER_CLIENT_QUOTAS: alter}


async def _describe(asked: Asked) -> described.DescribeClientQuotasResponse:
    answer = described.DescribeClientQuotasResponse(error_message=None, entries=None)
    try:
        wanted = Filter.of(asked.message)
        quotas = await _quotas(asked.api)
    except LedgerMQError as error:
        answer.error_code, answer.error_message = refusal_of(error)
        return answer
    answer.entries = []
    for quota in quotas:
        entity, found = shown(Subject(quota.principal, quota.client_id)), values(quota.limits)
        if not quota.trouble and entity is not None and found and wanted.matches(entity):
            answer.entries.append(
                described.EntryData(
                    entity=[described.EntityData(kind, name) for kind, name in entity.items()],
                    values=[described.ValueData(key, value) for key, value in found.items()],
                )
            )
    return answer


async def _alter(asked: Asked, sources: Sources) -> altered.AlterClientQuotasResponse:
    request = asked.message
    times = Counter(_named(entry) for entry in request.entries)
    changes = Changes(TIMEOUT_MS)
    answer = altered.AlterClientQuotasResponse()
    failed: LedgerMQError | None = None
    try:
        if len(request.entries) > ENTRIES_MAX:
            raise InvalidRequest(f"at most {ENTRIES_MAX} entries in one request, not {len(request.entries)}")
        await _quotas(asked.api)  # for `validate_only` and entries without any change, too
    except LedgerMQError as error:
        failed = error
    for entry in request.entries:
        entity = [altered.EntityData(one.entity_type, one.entity_name) for one in entry.entity]
        result = altered.EntryData(error_message=None, entity=entity)
        try:
            if failed is not None:
                raise failed
            if times[_named(entry)] > 1:
                raise InvalidRequest("this entity stands more than once in the request")
            wish = _wish(change_of(entry), sources)
            if not request.validate_only and (wish.set or wish.unset):
                await changes.make(lambda wish=wish: asked.api.change_quota(wish))  # type: ignore[misc]
        except LedgerMQError as error:
            result.error_code, result.error_message = refusal_of(error)
        answer.entries.append(result)
    return answer


def _wish(change: Change, sources: Sources) -> pb.ChangeQuotaRequest:
    return pb.ChangeQuotaRequest(
        principal=change.subject.principal,
        client_id=change.subject.client_id,
        set=change.given,
        unset=change.dropped,
        nonce=sources.random.getrandbits(128).to_bytes(16, "big"),
    )


def _named(entry: Any) -> frozenset[tuple[str, str | None]]:
    return frozenset((one.entity_type, one.entity_name) for one in entry.entity)


async def _quotas(api: BrokerApi) -> Sequence[pb.StoredQuota]:
    return (await api.list_quotas(pb.ListQuotasRequest())).quotas
