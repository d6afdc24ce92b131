"""Access and quotas: rules, tokens, tests of rules, quotas. Brokers want the operation cluster for nearly all of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.admin.access import AccessRule
from ledgermq.client.admin.quotas import LIMITS, QuotaDescription
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.records.bodies import decode

Words = Annotated[str, Meta(min_length=1, max_length=500)]


class Rule(Struct, kw_only=True):
    """`name`: of the topic, group or transactional id; with an asterisk at its end all names that begin so."""

    id: str
    principal: str
    operations: list[str]
    name: str
    deny: bool
    created: datetime | None
    created_by: str
    trouble: str


class Rules(Struct, kw_only=True):
    rules: list[Rule]


class RuleIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule to store: who may (or with `deny` may not) do what with which names."""

    principal: Words
    operations: Annotated[list[Words], Meta(min_length=1)]
    name: str = ""
    deny: bool = False


class Granted(Struct, kw_only=True):
    id: str


class Token(Struct, kw_only=True):
    """What is known of a token, without what it is. `expires`: null for one that never does."""

    token_id: str
    user: str
    groups: list[str]
    created: datetime
    expires: datetime | None
    created_by: str


class Tokens(Struct, kw_only=True):
    tokens: list[Token]


class TokenIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`expires_in_s`: seconds; null for a token that never expires."""

    user: Words
    groups: list[Words] = []
    expires_in_s: Annotated[int, Meta(ge=1, le=10 * 366 * 86400)] | None = None


class TokenOut(Struct, kw_only=True):
    """`token`: shown here once, and stored nowhere."""

    token_id: str
    token: str


class Decision(Struct, kw_only=True):
    """What the rules say of the caller, and which one decides."""

    allowed: bool
    why: str
    principal: str
    rule_id: str


class Quota(Struct, kw_only=True):
    """Limits at each broker; null: none."""

    principal: str
    client_id: str
    limits: dict[str, int | float]
    trouble: str


class Quotas(Struct, kw_only=True):
    quotas: list[Quota]


class QuotaIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """`limits`: those to set; null drops one. Others stay. Whole numbers, but for `dollars_month`."""

    principal: Words
    client_id: str = ""
    limits: Annotated[dict[str, Annotated[float, Meta(ge=0, le=2**53)] | None], Meta(min_length=1)]


_rule_in = msgspec.json.Decoder(RuleIn)
_token_in = msgspec.json.Decoder(TokenIn)
_quota_in = msgspec.json.Decoder(QuotaIn)


async def list_rules(call: Call) -> Answer:
    return Answer(msgspec.json.encode(Rules(rules=[_rule(each) for each in await call.caller.client.access.list()])))


def _rule(found: AccessRule) -> Rule:
    return Rule(
        id=found.id,
        principal=found.principal,
        operations=list(found.operations),
        name=found.name,
        deny=found.deny,
        created=found.created,
        created_by=found.created_by,
        trouble=found.trouble,
    )


async def grant(call: Call) -> Answer:
    given: RuleIn = decode(_rule_in, call.body)
    made = await call.caller.client.access.grant(given.principal, given.operations, given.name, deny=given.deny)
    return Answer(msgspec.json.encode(Granted(id=made)), status=201)


async def revoke(call: Call) -> Answer:
    if not await call.caller.client.access.revoke(call.names["rule"]):
        raise Problem("NO_SUCH_PATH", "there is no rule with this id")
    return Answer(status=204)


async def list_tokens(call: Call) -> Answer:
    found = [
        Token(
            token_id=each.token_id,
            user=each.user,
            groups=list(each.groups),
            created=each.created,
            expires=each.expires,
            created_by=each.created_by,
        )
        for each in await call.caller.client.access.list_tokens()
    ]
    return Answer(msgspec.json.encode(Tokens(tokens=found)))


async def create_token(call: Call) -> Answer:
    given: TokenIn = decode(_token_in, call.body)
    expires = None if given.expires_in_s is None else timedelta(seconds=given.expires_in_s)
    made = await call.caller.client.access.create_token(given.user, groups=given.groups, expires_in=expires)
    return Answer(msgspec.json.encode(TokenOut(token_id=made.token_id, token=made.token)), status=201)


async def revoke_token(call: Call) -> Answer:
    if not await call.caller.client.access.revoke_token(call.names["token_id"]):
        raise Problem("NO_SUCH_PATH", "there is no token with this id")
    return Answer(status=204)


async def test_rules(call: Call) -> Answer:
    """Without a principal: the caller, who needs no right for that."""
    found = await call.caller.client.access.test(
        call.query["operation"], call.query.get("name", ""), principal=call.query.get("principal", "")
    )
    decision = Decision(allowed=found.allowed, why=found.why, principal=found.principal, rule_id=found.rule_id)
    return Answer(msgspec.json.encode(decision))


async def list_quotas(call: Call) -> Answer:
    found = await call.caller.client.quotas.list()
    return Answer(msgspec.json.encode(Quotas(quotas=[_quota(each) for each in found])))


async def put_quota(call: Call) -> Answer:
    given: QuotaIn = decode(_quota_in, call.body)
    unknown = [name for name in given.limits if name not in LIMITS]
    if unknown:
        raise Problem("INVALID_REQUEST", f"there is no limit {unknown[0][:40]!r}: {', '.join(LIMITS)}")
    quotas = call.caller.client.quotas
    kept: dict[str, Any] = {name: value for name, value in given.limits.items() if value is not None}
    for name, value in kept.items():
        if name != "dollars_month":
            if not value.is_integer():
                raise Problem("INVALID_REQUEST", f"{name} must be a whole number, not {value}")
            kept[name] = int(value)
    found: QuotaDescription | None = None
    if dropped := [name for name, value in given.limits.items() if value is None]:
        found = await quotas.unset(given.principal, given.client_id, *dropped)
    if kept:
        found = await quotas.set(given.principal, given.client_id, **kept)
    shown = _quota(found or QuotaDescription(given.principal, given.client_id))
    return Answer(msgspec.json.encode(shown))


def _quota(found: QuotaDescription) -> Quota:
    limits = {name: value for name in LIMITS if (value := getattr(found, name)) is not None}
    return Quota(principal=found.principal, client_id=found.client_id, limits=limits, trouble=found.trouble)
