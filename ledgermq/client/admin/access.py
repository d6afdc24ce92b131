"""Administer access rules and tokens. A change is in force everywhere when its call returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.naming.tokens import draw_token

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """An access rule. `operations` are on topics (produce, consume, describe, create, alter, delete), or
    one of group, transaction and cluster. `name`: of the topic, the group or the transactional id; with
    an asterisk at the end, all names that begin with the text before it; empty for cluster.

    `id`, `created` and `created_by` are empty in a rule that is not stored. `trouble`: why the brokers
    cannot read the rule; they serve only super principals then.
    """

    principal: str
    operations: tuple[str, ...]
    name: str = ""
    deny: bool = False
    id: str = ""
    created: datetime | None = None
    created_by: str = ""
    trouble: str = ""

    def __str__(self) -> str:
        if self.trouble:
            return f"unreadable: {self.trouble}"
        effect = "deny" if self.deny else "allow"
        return " ".join(part for part in (effect, self.principal, ",".join(self.operations), self.name) if part)


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """What the rules say. `why`: for people. `rule_id`: the rule that decides, "" if no rule does."""

    allowed: bool
    why: str
    principal: str
    rule_id: str = ""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made. `token` is shown here only: brokers keep only its hash."""

    token_id: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenDescription:
    """What brokers know of a token. `expires`: None for a token that never does."""

    token_id: str
    user: str
    groups: tuple[str, ...]
    created: datetime
    expires: datetime | None
    created_by: str


class Access:
    """The methods of `client.access`. They need the right to administer the cluster (operation cluster)
    where access rules are enforced.
    """

    def __init__(self, context: ClientContext) -> None:
        self._connections: Connections = context.connections
        self._sources = context.sources

    async def grant(
        self, principal: str, operations: str | Iterable[str], name: str = "", *, deny: bool = False
    ) -> str:
        """Store an access rule, and return its id. A rule that exists stays as it is.

        `principal`: user:NAME, group:NAME, cert:NAME, jwt:SUBJECT, or * for every one. See `AccessRule`
        for the other parts. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        rule = _to_wire(AccessRule(principal, _operations(operations), name, deny))
        answer = await self._change(pb.ChangeRulesRequest(grant=[rule]))
        return answer.granted[0]

    async def revoke(self, *rule_ids: str) -> Sequence[str]:
        """Remove access rules, and return the ids of those that this call has removed. The others did not exist.
        Raises InvalidRequest, Unauthorized, Unavailable.
        """
        return list((await self._change(pb.ChangeRulesRequest(revoke=rule_ids))).revoked)

    async def list(self) -> Sequence[AccessRule]:
        """Return all access rules. Raises Unauthorized, Unavailable."""
        answer = await self._ask(lambda at: at.list_rules(pb.ListRulesRequest()))
        return [_from_wire(stored) for stored in answer.rules]

    async def test(
        self, operation: str, name: str = "", *, principal: str = "", groups: Iterable[str] = ()
    ) -> AccessDecision:
        """Return whether a principal may do something, and which rule decides. Without a principal: the
        caller, which needs no right for that. `groups`: of the principal.

        Raises InvalidRequest, Unauthorized, Unavailable.
        """
        request = pb.TestRulesRequest(principal=principal, groups=groups, operation=operation, name=name)
        answer = await self._ask(lambda at: at.test_rules(request))
        return AccessDecision(answer.allowed, answer.why, answer.principal, answer.rule_id)

    async def create_token(
        self, user: str, *, groups: Iterable[str] = (), expires_in: timedelta | None = None
    ) -> NewToken:
        """Make a token for the principal user:NAME and its groups. `expires_in`: None for a token that
        never expires.

        Raises InvalidRequest, Unauthorized, Unavailable; after Unavailable such a token may exist, but
        no program has it.
        """
        drawn = draw_token(self._sources)
        expires_ms = 0
        if expires_in is not None:
            if expires_in <= timedelta(0):
                raise InvalidRequest(f"expires_in must be longer than 0, not {expires_in}")
            expires_ms = self._sources.now_ms() + expires_in // timedelta(milliseconds=1)
        request = pb.CreateTokenRequest(
            token_id=drawn.token_id, hash=drawn.hash, user=user, groups=groups, expires_ms=expires_ms
        )
        await self._ask(lambda at: at.create_token(request))
        return NewToken(drawn.token_id, drawn.text)

    async def revoke_token(self, token_id: str) -> bool:
        """Remove a token; calls that begin afterwards are refused everywhere. Return False if there is no
        such token. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        request = pb.RevokeTokenRequest(token_id=token_id, nonce=self._sources.new_id())
        attempts = 0

        async def revoke(at: Connection) -> pb.RevokeTokenResponse:
            nonlocal attempts
            attempts += 1
            return await at.revoke_token(request)

        answer = await self._ask(revoke)
        # A broker of an earlier release does not know whether an earlier attempt of this call removed it.
        return answer.existed or (attempts > 1 and not answer.is_exact)

    async def list_tokens(self) -> Sequence[TokenDescription]:
        """Return all tokens, without what they are. Raises Unauthorized, Unavailable."""
        answer = await self._ask(lambda at: at.list_tokens(pb.ListTokensRequest()))
        return [
            TokenDescription(
                info.token_id,
                info.user,
                tuple(info.groups),
                _time(info.created_ms),
                _time(info.expires_ms) if info.expires_ms else None,
                info.created_by,
            )
            for info in answer.tokens
        ]

    async def _change(self, request: pb.ChangeRulesRequest) -> pb.ChangeRulesResponse:
        request.nonce = self._sources.new_id()
        return await self._ask(lambda at: at.change_rules(request))

    async def _ask(self, call: Callable[[Connection], Awaitable[A]]) -> A:
        return await self._connections.ask(call, self._connections.deadline())


def _operations(given: str | Iterable[str]) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else [str(part) for part in given]
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _to_wire(rule: AccessRule) -> pb.Rule:
    return pb.Rule(
        deny=rule.deny,
        principal=rule.principal,
        operations=rule.operations,
        name=rule.name.removesuffix("*"),
        prefix=rule.name.endswith("*"),
    )


def _from_wire(stored: pb.StoredRule) -> AccessRule:
    rule = stored.rule
    return AccessRule(
        rule.principal,
        tuple(rule.operations),
        f"{rule.name}*" if rule.prefix else rule.name,
        rule.deny,
        stored.id,
        _time(stored.created_ms),
        stored.created_by,
        stored.trouble,
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
