"""What rules and rule sets decide."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import re2
from hypothesis import example, given

from ledgermq.errors import InvalidRequest
from ledgermq.protocol.naming.tokens import bearer, draw_token, hash_of, token_id_of
from ledgermq_broker.access.state.format import ledgermq_security_pb2 as fmt
from ledgermq_broker.access.state.records import (
    StoredRule,
    StoredToken,
    decode_rule,
    decode_token,
    encode_rule,
    encode_token,
    rule_key,
    token_key,
)
from ledgermq_broker.access.state.rule_set import RuleSet, literal_prefix, rule_set_of
from ledgermq_broker.access.state.rules import TOPIC_OPERATIONS, Operation, Principal, Rule, checked_rule
from ledgermq_ledger.format.versioned import Unreadable
from tests.virtual_time import virtual_sources

ALICE = Principal("user:alice", frozenset({"ops"}))
BOB = Principal("user:bob")


def rule(text: str) -> Rule:
    """A rule as its own text: allow user:alice produce,consume orders*"""
    effect, principal, operations, *name = text.split(" ")
    given = name[0] if name else ""
    return checked_rule(
        deny=effect == "deny",
        principal=principal,
        operations=operations.split(","),
        name=given.removesuffix("*"),
        prefix=given.endswith("*"),
    )


def rules(*texts: str) -> RuleSet:
    made = [rule(text) for text in texts]
    return rule_set_of({rule_key(each.id): (i, encode_rule(StoredRule(each))) for i, each in enumerate(made)})


def test_what_no_rule_allows_is_denied() -> None:
    assert not RuleSet().decide(ALICE, Operation.PRODUCE, "orders").allowed
    assert not rules("allow user:alice produce orders").decide(BOB, Operation.PRODUCE, "orders").allowed


def test_literal_and_prefix() -> None:
    found = rules("allow user:alice produce orders", "allow user:alice consume orders.*")
    assert found.decide(ALICE, Operation.PRODUCE, "orders").allowed
    assert not found.decide(ALICE, Operation.PRODUCE, "orders.eu").allowed
    assert found.decide(ALICE, Operation.CONSUME, "orders.eu").allowed
    assert not found.decide(ALICE, Operation.CONSUME, "orders").allowed


@pytest.mark.parametrize("denied", ["deny user:alice produce *", "deny group:ops produce orders", "deny * produce o*"])
def test_deny_wins_over_every_allow(denied: str) -> None:
    found = rules("allow user:alice produce orders", "allow * produce *", denied)
    decision = found.decide(ALICE, Operation.PRODUCE, "orders")
    assert not decision.allowed
    assert decision.rule == rule(denied)


def test_a_group_of_principals_and_everyone() -> None:
    found = rules("allow group:ops delete *", "allow * describe public*")
    assert found.decide(ALICE, Operation.DELETE, "orders").allowed
    assert not found.decide(BOB, Operation.DELETE, "orders").allowed
    assert found.decide(BOB, Operation.DESCRIBE, "public.news").allowed


def test_to_produce_is_to_see_but_not_to_read() -> None:
    found = rules("allow user:alice produce orders")
    assert found.decide(ALICE, Operation.DESCRIBE, "orders").allowed
    assert not found.decide(ALICE, Operation.CONSUME, "orders").allowed
    assert rules("allow * describe *", "deny * produce *").decide(ALICE, Operation.DESCRIBE, "orders").allowed


def test_rights_on_one_kind_of_name_are_none_on_another() -> None:
    found = rules("allow user:alice group *", "allow user:alice transaction *")
    assert found.decide(ALICE, Operation.GROUP, "billing").allowed
    assert not found.decide(ALICE, Operation.CONSUME, "billing").allowed
    assert not found.decide(ALICE, Operation.CLUSTER).allowed
    assert rules("allow user:alice cluster").decide(ALICE, Operation.CLUSTER).allowed


def test_everything_with_a_prefix() -> None:
    found = rules("allow user:alice consume orders*", "deny user:alice consume orders.secret")
    assert found.allows_all(ALICE, Operation.CONSUME, "orders.eu")
    assert not found.allows_all(ALICE, Operation.CONSUME, "orders.")
    assert not found.allows_all(ALICE, Operation.CONSUME, "order")
    assert not rules("allow user:alice consume orders").allows_all(ALICE, Operation.CONSUME, "orders")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("allow alice produce x", "user:NAME"),
        ("allow user:alice prodcue x", "did you mean 'produce'"),
        ("allow user:alice produce,group x", "several rules"),
        ("allow user:alice cluster x", "no name"),
        ("allow user:alice produce", "needs a name"),
        (f"allow user:alice produce {'x' * 250}", "249"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        rule(text)


_rules = st.builds(
    Rule,
    st.booleans(),
    st.sampled_from(["user:alice", "group:ops", "*", "cert:a.b", "jwt:x"]),
    st.sets(st.sampled_from(sorted(TOPIC_OPERATIONS, key=str)), min_size=1).map(frozenset),
    st.text("ab.", min_size=1, max_size=3),
    st.booleans(),
)


@given(_rules, st.integers(0, 2**50))
def test_a_rule_survives_its_record(given: Rule, created_ms: int) -> None:
    stored = StoredRule(given, created_ms, "user:root")
    found = decode_rule(rule_key(given.id), encode_rule(stored))
    assert found == stored
    assert isinstance(found, StoredRule)
    assert found.rule.id == given.id


@given(st.lists(_rules, max_size=6), st.sampled_from([*TOPIC_OPERATIONS]), st.text("ab.", max_size=4))
def test_everything_with_a_prefix_means_each_name(given: list[Rule], operation: Operation, name: str) -> None:
    found = rule_set_of({rule_key(each.id): (i, encode_rule(StoredRule(each))) for i, each in enumerate(given)})
    for prefix in (name[:end] for end in range(len(name) + 1)):
        if found.allows_all(ALICE, operation, prefix):
            assert found.decide(ALICE, operation, name).allowed


_SIGNS = [*"ab.\\*?|(){}[]+^$-", "(?i)", "(?U)", "(?-s)", "(?:", "\\Q", "\\E", "\\.", "{0}", "{0,1}"]


@example("ab(?i){0}", "a")
@example("ab(?U)?", "a")
@example("a\\.(?i)*", "a")
@given(st.lists(st.sampled_from(_SIGNS), max_size=8).map("".join), st.text("ab.-", max_size=5))
def test_the_literal_prefix_begins_every_name_that_matches(pattern: str, name: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        return
    if compiled.fullmatch(name):
        assert name.startswith(literal_prefix(pattern))


def test_a_rule_that_cannot_be_read_denies_everything() -> None:
    allowed = rule("allow user:alice produce *")
    later = fmt.RuleRecord(version=2, effect=fmt.ALLOW, principal="*", operations=["produce"], name="x")
    records = {
        rule_key(allowed.id): (0, encode_rule(StoredRule(allowed))),
        rule_key("0123456789abcdef"): (1, later.SerializeToString()),
    }
    found = rule_set_of(records)
    decision = found.decide(ALICE, Operation.PRODUCE, "orders")
    assert not decision.allowed
    assert "version 2" in decision.why
    assert not found.allows_all(ALICE, Operation.PRODUCE, "")


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xff",
        fmt.RuleRecord(version=1, principal="*", operations=["produce"], name="x").SerializeToString(),
        fmt.RuleRecord(version=1, effect=fmt.DENY, principal="*", operations=["fly"], name="x").SerializeToString(),
        fmt.RuleRecord(version=1, effect=fmt.DENY, principal="*", operations=["produce"], name="x").SerializeToString(),
    ],
    ids=["garbage", "no effect", "unknown operation", "another rule's key"],
)
def test_a_record_that_is_no_rule_is_unreadable(value: bytes) -> None:
    assert isinstance(decode_rule(rule_key("0123456789abcdef"), value), Unreadable)


def test_a_token_is_known_by_its_hash_only() -> None:
    drawn = draw_token(virtual_sources(1))
    stored = StoredToken(drawn.token_id, drawn.hash, "alice", ("ops",), 1, 2, "user:root")
    value = encode_token(stored)
    assert decode_token(token_key(drawn.token_id), value) == stored
    assert drawn.text.encode() not in value
    found = rule_set_of({token_key(drawn.token_id): (0, value)})
    assert found.token(drawn.text) == stored
    assert found.token(drawn.text[:-1] + ("A" if drawn.text[-1] != "A" else "B")) is None
    assert found.token("") is None
    assert found.token("lmq_") is None
    assert stored.principal == Principal("user:alice", frozenset({"ops"}), token_id=drawn.token_id, expires_ms=2)


def test_drawn_tokens_differ_and_can_be_sent() -> None:
    sources = virtual_sources(2)
    drawn = [draw_token(sources) for _ in range(100)]
    assert len({each.text for each in drawn}) == 100
    for each in drawn:
        assert token_id_of(each.text) == each.token_id
        assert hash_of(each.text) == each.hash
        assert bearer(each.text) == f"Bearer {each.text}"


def test_entries_that_did_not_change_are_taken_over() -> None:
    first, second = rule("allow user:alice produce a"), rule("allow user:alice produce b")
    records = {rule_key(first.id): (0, encode_rule(StoredRule(first)))}
    before = rule_set_of(records)
    assert rule_set_of(records, before) is before
    after = rule_set_of(records | {rule_key(second.id): (1, encode_rule(StoredRule(second)))}, before)
    assert after.rules[first.id] is before.rules[first.id]
    assert set(after.rules) == {first.id, second.id}
    assert set(rule_set_of({}, after).rules) == set()


GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def test_golden_records_of_version_1() -> None:
    """Written by the first release with rules; what is stored must be read forever."""
    value = (GOLDEN / "security-rule-v1.bin").read_bytes()
    stored = StoredRule(rule("deny group:ops produce,consume orders.*"), 1_764_547_200_000, "user:root")
    assert rule_key(stored.rule.id) == b"acl/f7e65bdd5a9f0eac"
    assert decode_rule(b"acl/f7e65bdd5a9f0eac", value) == stored
    assert encode_rule(stored) == value
    value = (GOLDEN / "security-token-v1.bin").read_bytes()
    token = StoredToken(
        "0123456789ab",
        bytes(range(32)),
        "alice",
        ("ops", "staff"),
        1_764_547_200_000,
        1_764_547_300_000,
        "user:root",
    )
    assert decode_token(b"token/0123456789ab", value) == token
    assert encode_token(token) == value
