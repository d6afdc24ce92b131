"""The rule set: all access rules, tokens and SCRAM credentials at one moment, and what they decide.

It is a pure fold of records of `__metadata`, of which the newest of each key counts. Deny wins over
allow, and what no rule allows is denied. A rule that cannot be read may deny anything: while there
is one, nothing is allowed by rules. A token or a credential that cannot be read is none.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ledgermq.protocol.naming.tokens import hash_of, token_id_of
from ledgermq_broker.access.state.records import (
    PREFIXES,
    RULE_PREFIX,
    TOKEN_PREFIX,
    StoredRule,
    StoredToken,
    decode_rule,
    decode_token,
)
from ledgermq_broker.access.state.rules import Operation, Principal, Rule, ScramProof
from ledgermq_broker.access.state.scram import SCRAM_PREFIX, ScramName, StoredScram, decode_scram
from ledgermq_ledger.format.versioned import Unreadable

RULES_MAX = 10_000
TOKENS_MAX = 10_000

Records = Mapping[bytes, tuple[int, bytes]]
"""By key: (offset, value) of the newest record."""

_MAY_BE_ABSENT = re.compile(r"[*?{+]|\(\?[A-Za-z-]*\)|\\[QE]")
"""What follows a sign that names may lack. Flags and quotes are nothing by themselves, so a repetition behind them
is that of the sign before them.
"""
_LITERAL = re.compile(r"(?:[A-Za-z0-9_-]|\\\.)*")


@dataclass(frozen=True, slots=True)
class Decision:
    """`rule`: the one that decides, None if no rule is for this."""

    allowed: bool
    why: str
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """`rules` by id, `tokens` by token id, `scram` by user and mechanism, `unreadable`: why, by the key of a rule's
    record.
    """

    rules: Mapping[str, StoredRule] = field(default_factory=dict)
    tokens: Mapping[str, StoredToken] = field(default_factory=dict)
    scram: Mapping[ScramName, StoredScram] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    _offsets: Mapping[bytes, int] = field(default_factory=dict)
    _by_principal: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)

    def decide(self, principal: Principal, operation: Operation, name: str = "") -> Decision:
        """Decide whether a principal may do something to the topic, group or transactional id `name`."""
        if self.unreadable:
            key, why = next(iter(self.unreadable.items()))
            return Decision(False, f"rule {key} cannot be read by this release ({why}), and it may deny anything")
        allowing = None
        for rule in self._rules_of(principal):
            if rule.is_for(operation) and rule.matches(name):
                if rule.deny:
                    return Decision(False, f"rule {rule.id} denies it: {rule}", rule)
                allowing = allowing or rule
        if allowing is not None:
            return Decision(True, f"rule {allowing.id} allows it: {allowing}", allowing)
        return Decision(False, "no rule allows it")

    def allows_all(self, principal: Principal, operation: Operation, prefix: str) -> bool:
        """Return whether a principal may do something to every name that begins with `prefix`."""
        rules = [rule for rule in self._rules_of(principal) if rule.is_for(operation)]
        return (
            not self.unreadable
            and any(rule.covers(prefix) for rule in rules if not rule.deny)
            and not any(rule.touches(prefix) for rule in rules if rule.deny)
        )

    def token(self, text: str) -> StoredToken | None:
        """Return what is known of a static token; None if it is none of this cluster's."""
        known = self.tokens.get(token_id_of(text) or "")
        return known if known is not None and hmac.compare_digest(known.hash, hash_of(text)) else None

    def proven(self, proof: ScramProof) -> StoredScram | None:
        """Return the credential that a caller has proved; None if it was removed, or has another password now."""
        known = self.scram.get(ScramName(proof.user, proof.mechanism))
        return known if known is not None and known.proof == proof else None

    def _rules_of(self, principal: Principal) -> list[Rule]:
        return [rule for name in principal.named_in_rules for rule in self._by_principal.get(name, ())]


def rule_set_of(records: Records, before: RuleSet | None = None) -> RuleSet:
    """Return the rule set of these records. `before`: one of earlier records, which is returned if it is
    of the same ones; entries that did not change are not decoded again.
    """
    offsets = {key: offset for key, (offset, _) in records.items() if key.startswith((*PREFIXES, SCRAM_PREFIX))}
    if before is not None and offsets == before._offsets:
        return before
    known = before or RuleSet()
    rules: dict[str, StoredRule] = {}
    tokens: dict[str, StoredToken] = {}
    scram: dict[ScramName, StoredScram] = {}
    unreadable: dict[str, str] = {}
    by_principal: dict[str, list[Rule]] = {}
    for key, (offset, value) in records.items():
        if key.startswith(RULE_PREFIX):
            name = key.removeprefix(RULE_PREFIX).decode(errors="replace")
            is_known = known._offsets.get(key) == offset and name in known.rules
            rule = known.rules[name] if is_known else decode_rule(key, value)
            if isinstance(rule, Unreadable):
                unreadable[name] = rule.why
                continue
            rules[name] = rule
            by_principal.setdefault(rule.rule.principal, []).append(rule.rule)
        elif key.startswith(TOKEN_PREFIX):
            name = key.removeprefix(TOKEN_PREFIX).decode(errors="replace")
            is_known = known._offsets.get(key) == offset and name in known.tokens
            token = known.tokens[name] if is_known else decode_token(key, value)
            if not isinstance(token, Unreadable):
                tokens[name] = token
        elif key.startswith(SCRAM_PREFIX):
            credential = decode_scram(key, value)
            if not isinstance(credential, Unreadable):
                scram[credential.name] = credential
    return RuleSet(
        rules, tokens, scram, unreadable, offsets, {name: tuple(found) for name, found in by_principal.items()}
    )


def literal_prefix(pattern: str) -> str:
    """Return a text with which every name begins that an RE2 pattern matches as a whole; "" if the
    pattern shows none.

    It is cautious: a longer prefix may exist.
    """
    if "|" in pattern:
        return ""
    begin = pattern.removeprefix("^")
    found = _LITERAL.match(begin)
    literal = found[0] if found else ""
    if _MAY_BE_ABSENT.match(begin, len(literal)):
        literal = literal[: -2 if literal.endswith("\\.") else -1]
    return literal.replace("\\.", ".")
