"""Answer DescribeAcls, CreateAcls and DeleteAcls by the caller's own calls about access rules (`bindings`).

rules not enforced      SECURITY_DISABLED, since no ACL would count
CreateAcls              a rule for each ACL; those that a rule includes already need none
DeleteAcls              revokes each rule that has only such ACLs, and grants what is left of the others in the
                        same call. An ACL that several filters mean stands in the answer to the first
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ledgermq.errors import InvalidRequest, LedgerMQError, Unauthenticated
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from ledgermq_broker.access.rule_path import CHANGES_MAX, rule_from_wire, rule_to_wire
from ledgermq_broker.access.state.rules import Rule
from ledgermq_broker.kafka.handlers.admin.changes import Changes
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.security.bindings import Acl, Filter, acls_of, is_included, left_of, rule_of
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of
from ledgermq_broker.kafka.wire.generated import create_acls_response as created
from ledgermq_broker.kafka.wire.generated import delete_acls_response as deleted
from ledgermq_broker.kafka.wire.generated import describe_acls_response as described
from ledgermq_broker.kafka.wire.messages import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, Api

TIMEOUT_MS = 20_000
"""The requests name none; clients wait 30 s and more."""
ENTRIES_MAX = CHANGES_MAX
"""ACLs or filters in a request."""

REVOKED_AT_ONCE = CHANGES_MAX // 2
"""Rules that one call revokes: it may grant as many, what is left of them."""

Refusal = tuple[Code, str]


class SecurityDisabled(InvalidRequest):
    kafka_code: ClassVar[int] = Code.SECURITY_DISABLED


def answers(sources: Sources) -> Mapping[Api, Handler]:
    """Return the handler of each API."""

    async def create(asked: Asked) -> Any:
        return await _create(asked, sources)

    async def delete(asked: Asked) -> Any:
        return await _delete(asked, sources)

    return {DESCRIBE_ACLS: _describe, CREATE_ACLS: create, DELETE_ACLS: delete}


async def _describe(asked: Asked) -> described.DescribeAclsResponse:
    answer = described.DescribeAclsResponse(error_message=None)
    try:
        wanted = Filter.of(asked.message)
        rules = await _rules(asked.api)
    except LedgerMQError as error:
        answer.error_code, answer.error_message = refusal_of(error)
        return answer
    by_pattern: dict[tuple[int, str, int], list[described.AclDescription]] = {}
    for acl in _unique(acl for rule in rules.values() for acl in acls_of(rule) if wanted.matches(acl)):
        acls = by_pattern.setdefault((acl.resource, acl.name, acl.pattern), [])
        acls.append(described.AclDescription(acl.principal, acl.host, acl.operation, acl.permission))
    answer.resources = [described.DescribeAclsResource(*pattern, acls) for pattern, acls in by_pattern.items()]
    return answer


async def _create(asked: Asked, sources: Sources) -> created.CreateAclsResponse:
    wanted = [
        Acl(
            one.resource_type,
            one.resource_name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for one in asked.message.creations
    ]
    found = await _created(asked.api, wanted, sources)
    return created.CreateAclsResponse(results=[created.AclCreationResult(*(one or (Code.NONE, None))) for one in found])


async def _created(api: BrokerApi, wanted: Sequence[Acl], sources: Sources) -> list[Refusal | None]:
    """Grant a rule for each ACL, and return why an ACL has none."""
    try:
        _check_count(wanted, "ACLs")
        known = await _rules(api)
    except LedgerMQError as error:
        return [refusal_of(error)] * len(wanted)
    said: list[Rule | Refusal] = []
    for acl in wanted:
        try:
            said.append(rule_of(acl))
        except InvalidRequest as error:
            said.append(refusal_of(error))
    new = {rule.id: rule for rule in said if isinstance(rule, Rule)}
    after = [*known.values(), *new.values()]
    failed = None
    if new:
        try:
            await _change(api, list(new.values()), [], sources)
        except LedgerMQError as error:
            failed = refusal_of(error)
    return [
        failed if isinstance(one, Rule) or is_included(acl, after) else one
        for acl, one in zip(wanted, said, strict=True)
    ]


async def _delete(asked: Asked, sources: Sources) -> deleted.DeleteAclsResponse:
    entries = asked.message.filters
    results = [deleted.DeleteAclsFilterResult(error_message=None) for _ in entries]
    answer = deleted.DeleteAclsResponse(filter_results=results)
    try:
        _check_count(entries, "filters")
        rules = await _rules(asked.api)
    except LedgerMQError as error:
        for result in results:
            result.error_code, result.error_message = refusal_of(error)
        return answer
    left = {rule_id: list(acls_of(rule)) for rule_id, rule in rules.items()}
    gone: dict[str, list[tuple[int, Acl]]] = {}
    """By the rule's id: the place of the filter, and an ACL that it means."""
    for place, (entry, result) in enumerate(zip(entries, results, strict=True)):
        await asyncio.sleep(0)  # a filter looks at all rules
        try:
            wanted = Filter.of(entry)
        except InvalidRequest as error:
            result.error_code, result.error_message = refusal_of(error)
            continue
        for rule_id, acls in left.items():
            matching = [acl for acl in acls if wanted.matches(acl)]
            if matching:
                left[rule_id] = [acl for acl in acls if acl not in matching]
                gone.setdefault(rule_id, []).extend((place, acl) for acl in matching)
    await _revoke(asked.api, rules, gone, results, sources)
    return answer


async def _revoke(
    api: BrokerApi,
    rules: Mapping[str, Rule],
    gone: Mapping[str, Sequence[tuple[int, Acl]]],
    results: Sequence[deleted.DeleteAclsFilterResult],
    sources: Sources,
) -> None:
    """Revoke these ACLs of rules, and put what became of them into the results."""
    ids = list(gone)
    for at in range(0, len(ids), REVOKED_AT_ONCE):
        part = ids[at : at + REVOKED_AT_ONCE]
        rests = {one: left_of(rules[one], [acl for _, acl in gone[one]]) for one in part}
        outcome: tuple[int, str | None] = (Code.NONE, None)
        try:
            revoked = await _change(api, [rest for rest in rests.values() if rest is not None], part, sources)
            # another program has revoked these meanwhile, so nothing of them may come back
            back = {rest.id for one, rest in rests.items() if rest is not None and one not in revoked}
            back -= {*rules, *(rest.id for one, rest in rests.items() if rest is not None and one in revoked)}
            if back:
                await _change(api, [], sorted(back), sources)
        except LedgerMQError as error:
            outcome = refusal_of(error)
        for one in part:
            for place, acl in gone[one]:
                _report(results[place], acl, *outcome)


def _report(result: deleted.DeleteAclsFilterResult, acl: Acl, code: int, message: str | None) -> None:
    result.matching_acls.append(
        deleted.DeleteAclsMatchingAcl(
            code,
            message,
            acl.resource,
            acl.name,
            acl.pattern,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission,
        )
    )


async def _change(api: BrokerApi, grant: Sequence[Rule], revoke: Sequence[str], sources: Sources) -> set[str]:
    """Change rules, and return the ids of those that were revoked. Raises what the call raises."""
    request = pb.ChangeRulesRequest(
        grant=[rule_to_wire(rule) for rule in grant],
        revoke=revoke,
        nonce=sources.random.getrandbits(128).to_bytes(16, "big"),
    )
    answer = await Changes(TIMEOUT_MS).make(lambda: api.change_rules(request))
    return set(answer.revoked)


async def _rules(api: BrokerApi) -> dict[str, Rule]:
    """Return all rules by id. Raises SecurityDisabled, Unauthorized, Unavailable, InvalidRequest."""
    answer = await api.list_rules(pb.ListRulesRequest())
    if not answer.enforced:
        raise SecurityDisabled(
            "rules are not enforced (security = open), so no ACL counts. `ledgermq acl` stores rules before brokers"
            " enforce them"
        )
    trouble = next((one for one in answer.rules if one.trouble), None)
    if trouble is not None:
        raise InvalidRequest(
            f"rule {trouble.id} cannot be read by this release ({trouble.trouble}): `ledgermq acl revoke` ends it"
        )
    return {one.id: rule_from_wire(one.rule) for one in answer.rules}


def _check_count(entries: Sequence[Any], what: str) -> None:
    if len(entries) > ENTRIES_MAX:
        raise InvalidRequest(f"at most {ENTRIES_MAX} {what} in one request, not {len(entries)}")


def _unique(acls: Iterable[Acl]) -> Iterable[Acl]:
    """Return each ACL once, in order of resources and names."""
    return sorted(set(acls), key=lambda acl: (acl.resource, acl.pattern, acl.name, acl.principal, acl.operation))


def refusal_of(error: LedgerMQError) -> Refusal:
    """Return the code and the text of a refusal. Raises the error itself if the connection has to end."""
    if isinstance(error, Unauthenticated):
        raise error
    return code_of(error, Area.ADMIN), error.message
