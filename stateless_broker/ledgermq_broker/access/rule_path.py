"""Serve the calls about rules and tokens: change them at the controller, list them, test them.

A change is answered when it is durable and in force everywhere (`freshness.Everywhere`). A repetition
of a change is recognized by its nonce, and that of a new token by its id, which is drawn once: it does
not undo what another program has changed since, and waits for the brokers again. To revoke a token
twice does no harm, for its id is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import InvalidRequest, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import check_nonce
from ledgermq.protocol.naming.tokens import HASH_BYTES, is_token_id
from ledgermq.sources import Sources
from ledgermq_broker.access.freshness import Everywhere, RulesInForce
from ledgermq_broker.access.state.records import (
    ACCESS_CHANGES_KEY,
    StoredRule,
    StoredToken,
    absent_before,
    encode_rule,
    encode_token,
    knows_change,
    noted_change,
    rule_key,
    token_key,
)
from ledgermq_broker.access.state.rule_set import RULES_MAX, TOKENS_MAX, rule_set_of
from ledgermq_broker.access.state.rules import (
    GROUPS_MAX,
    PRINCIPAL_CHARS_MAX,
    Principal,
    Rule,
    checked_principal,
    checked_rule,
    checked_user,
    operation_named,
)
from ledgermq_broker.cluster.heartbeat import RULES
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Controller, Decide
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.topics.catalog import Catalog

CHANGES_MAX = 1000
"""Rules that one call may grant and revoke together."""
ID_CHARS_MAX = 64

Change = tuple[bytes, bytes | None]
"""A record for `__metadata`: key, and value or None to delete the key."""


class RulePath:
    """`session`: of this broker's process, as in its heartbeat."""

    def __init__(
        self,
        controller: Controller,
        at_controller: AtController,
        metadata: Metadata,
        in_force: RulesInForce,
        everywhere: Everywhere,
        sources: Sources,
        session: str,
    ) -> None:
        self._controller = controller
        self._at_controller = at_controller
        self._metadata = metadata
        self._in_force = in_force
        self._everywhere = everywhere
        self._sources = sources
        self._session = session

    async def change_rules(self, request: pb.ChangeRulesRequest) -> pb.ChangeRulesResponse:
        """Grant and revoke rules. Raises InvalidRequest, ResourceExhausted, Unavailable."""
        if len(request.grant) + len(request.revoke) > CHANGES_MAX:
            raise InvalidRequest(f"at most {CHANGES_MAX} rules in one request")
        check_nonce(request.nonce)
        granted = [rule_from_wire(rule) for rule in request.grant]
        for rule_id in request.revoke:
            if len(rule_id) > ID_CHARS_MAX:
                raise InvalidRequest(f"a rule's id has 16 characters, not {len(rule_id)}")
        named = list(dict.fromkeys(request.revoke))
        revoked: list[str] = []

        def decide(catalog: Catalog) -> list[Change]:
            if knows_change(catalog.others, ACCESS_CHANGES_KEY, request.nonce):
                were_absent = absent_before(catalog.others, ACCESS_CHANGES_KEY, request.nonce)
                revoked[:] = [rule_id for place, rule_id in enumerate(named) if place not in were_absent]
                return []
            now = {key for key in catalog.others if key.startswith(b"acl/")}
            revoked[:] = [rule_id for rule_id in named if rule_key(rule_id) in now]
            absent = [place for place, rule_id in enumerate(named) if rule_key(rule_id) not in now]
            new = {rule.id: rule for rule in granted if rule_key(rule.id) not in now or rule.id in revoked}
            if len(now) - len(revoked) + len(new) > RULES_MAX:
                raise ResourceExhausted(
                    f"the cluster has at most {RULES_MAX} access rules: revoke some, or use prefixes"
                )
            made = {
                rule_id: StoredRule(rule, self._sources.now_ms(), request.created_by[:PRINCIPAL_CHARS_MAX])
                for rule_id, rule in new.items()
            }
            gone: list[Change] = [(rule_key(rule_id), None) for rule_id in revoked if rule_id not in made]
            stored = ((rule_key(rule_id), encode_rule(rule)) for rule_id, rule in made.items())
            return [*stored, *gone, *noted_change(catalog.others, ACCESS_CHANGES_KEY, request.nonce, absent)]

        async def here() -> pb.ChangeRulesResponse:
            await self.put(decide)
            return pb.ChangeRulesResponse(granted=[rule.id for rule in granted], revoked=revoked)

        return await self._at_controller.run(request, here, lambda line, passed: line.change_rules(passed))

    async def create_token(self, request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
        """Store what proves a token. Raises InvalidRequest, ResourceExhausted, Unavailable."""
        token = _token_from_wire(request, self._sources.now_ms())

        def decide(catalog: Catalog) -> list[Change]:
            key, nonce = token_key(token.token_id), token.token_id.encode()
            before = (
                rule_set_of({key: catalog.others[key]}).tokens.get(token.token_id) if key in catalog.others else None
            )
            if before is not None and (before.hash, before.principal) == (token.hash, token.principal):
                return []  # an earlier attempt of this call
            if key not in catalog.others and knows_change(catalog.others, ACCESS_CHANGES_KEY, nonce):
                return []  # likewise, and another program has revoked the token since
            if key in catalog.others:
                raise InvalidRequest(f"there is another token with the id {token.token_id}: draw a new one")
            if sum(other.startswith(b"token/") for other in catalog.others) >= TOKENS_MAX:
                raise ResourceExhausted(f"the cluster has {TOKENS_MAX} tokens, the most that are allowed: revoke some")
            return [
                (key, encode_token(token)),
                *noted_change(catalog.others, ACCESS_CHANGES_KEY, nonce),
            ]

        async def here() -> pb.CreateTokenResponse:
            await self.put(decide)
            return pb.CreateTokenResponse()

        return await self._at_controller.run(request, here, lambda line, passed: line.create_token(passed))

    async def revoke_token(self, request: pb.RevokeTokenRequest) -> pb.RevokeTokenResponse:
        if not is_token_id(request.token_id):
            raise InvalidRequest("a token's id has 12 hexadecimal digits; `ledgermq token list` shows it")
        check_nonce(request.nonce)
        key = token_key(request.token_id)
        existed = False

        def decide(catalog: Catalog) -> list[Change]:
            nonlocal existed
            if knows_change(catalog.others, ACCESS_CHANGES_KEY, request.nonce):
                existed = not absent_before(catalog.others, ACCESS_CHANGES_KEY, request.nonce)
                return []
            is_there = key in catalog.others
            existed = is_there or (existed and not request.nonce)
            gone: list[Change] = [(key, None)] if is_there else []
            return [*gone, *noted_change(catalog.others, ACCESS_CHANGES_KEY, request.nonce, () if is_there else (0,))]

        async def here() -> pb.RevokeTokenResponse:
            await self.put(decide)
            return pb.RevokeTokenResponse(existed=existed, is_exact=bool(request.nonce))

        return await self._at_controller.run(request, here, lambda line, passed: line.revoke_token(passed))

    async def list_rules(self, request: pb.ListRulesRequest) -> pb.ListRulesResponse:
        await self._metadata.catch_up()
        self._in_force.catalog_changed()
        rules = self._in_force.rules
        found = [
            pb.StoredRule(
                id=rule_id, rule=rule_to_wire(stored.rule), created_ms=stored.created_ms, created_by=stored.created_by
            )
            for rule_id, stored in sorted(rules.rules.items())
        ]
        found += [pb.StoredRule(id=rule_id, trouble=why) for rule_id, why in sorted(rules.unreadable.items())]
        return pb.ListRulesResponse(rules=found, enforced=self._in_force.enforced)

    async def test_rules(self, request: pb.TestRulesRequest) -> pb.TestRulesResponse:
        operation = operation_named(request.operation)
        name = checked_principal(request.principal or "*")
        principal = Principal(name, frozenset(checked_user(group, "group") for group in request.groups))
        await self._metadata.catch_up()
        self._in_force.catalog_changed()
        if name in self._in_force.supers:
            return pb.TestRulesResponse(allowed=True, why="it is a super principal of this broker", principal=name)
        decision = self._in_force.rules.decide(principal, operation, request.name)
        return pb.TestRulesResponse(
            allowed=decision.allowed,
            why=decision.why,
            rule_id=decision.rule.id if decision.rule is not None else "",
            principal=name,
        )

    async def list_tokens(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        await self._metadata.catch_up()
        self._in_force.catalog_changed()
        return pb.ListTokensResponse(
            tokens=[
                pb.TokenInfo(
                    token_id=token_id,
                    user=token.user,
                    groups=token.groups,
                    created_ms=token.created_ms,
                    expires_ms=token.expires_ms,
                    created_by=token.created_by,
                )
                for token_id, token in sorted(self._in_force.rules.tokens.items())
            ]
        )

    async def confirm_rules(self, request: pb.ConfirmRulesRequest) -> pb.ConfirmRulesResponse:
        await self._in_force.confirm(request.offset)
        return pb.ConfirmRulesResponse(session=self._session)

    async def put(self, decide: Decide, feature: str = RULES) -> None:
        """Write records that need a feature of every broker, and return when no broker judges without
        them.
        """
        offset = await self._controller.put_rules(decide, feature)
        self._in_force.catalog_changed()
        await self._everywhere.wait(offset)


def rule_from_wire(rule: pb.Rule) -> Rule:
    return checked_rule(
        deny=rule.deny, principal=rule.principal, operations=rule.operations, name=rule.name, prefix=rule.prefix
    )


def rule_to_wire(rule: Rule) -> pb.Rule:
    return pb.Rule(
        deny=rule.deny,
        principal=rule.principal,
        operations=sorted(operation.value for operation in rule.operations),
        name=rule.name,
        prefix=rule.prefix,
    )


def _token_from_wire(request: pb.CreateTokenRequest, now_ms: int) -> StoredToken:
    if not is_token_id(request.token_id) or len(request.hash) != HASH_BYTES:
        raise InvalidRequest(f"a new token has an id of 12 hexadecimal digits, and a hash of {HASH_BYTES} bytes")
    if len(request.groups) > GROUPS_MAX:
        raise InvalidRequest(f"a token names at most {GROUPS_MAX} groups, not {len(request.groups)}")
    if request.expires_ms and request.expires_ms <= now_ms:
        raise InvalidRequest("the token would have expired already")
    groups: Sequence[str] = [checked_user(group, "group") for group in request.groups]
    return StoredToken(
        request.token_id,
        request.hash,
        checked_user(request.user),
        tuple(dict.fromkeys(groups)),
        now_ms,
        request.expires_ms,
        request.created_by[:PRINCIPAL_CHARS_MAX],
    )
