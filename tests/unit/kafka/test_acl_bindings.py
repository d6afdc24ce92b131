"""Access rules and Kafka's ACLs say the same, or one of them refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq_broker.access.state.records import StoredRule, encode_rule, rule_key
from ledgermq_broker.access.state.rule_set import RuleSet, rule_set_of
from ledgermq_broker.access.state.rules import TOPIC_OPERATIONS, Principal, Rule
from ledgermq_broker.access.state.rules import Operation as Ours
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.handlers.security.bindings import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    DENY,
    Acl,
    Filter,
    Operation,
    Pattern,
    Resource,
    acls_of,
    is_included,
    left_of,
    rule_of,
)

NAMES = ("*", "orders", "orders.eu", "o", "my group", "_", "__kafka.bXk", "ü", CLUSTER_NAME, "")
PRINCIPALS = ("User:ann", "User:*", "cert:a.example", "jwt:sub", "group:sales", "user:ann", "Group:x", "User:", "ann")
EVERY = [
    Acl(resource, name, pattern, principal, host, operation, permission)
    for resource, name, pattern, principal, host, operation, permission in product(
        range(9), NAMES, (1, 2, 3, 4, 5), ("User:ann", "User:*"), ("*",), range(17), (1, 2, 3)
    )
]
ANY_ACL = Filter(ANY, None, ANY, None, None, ANY, ANY)


def acl(resource: int, operation: int, name: str = "orders", pattern: int = Pattern.LITERAL, **more: object) -> Acl:
    made = Acl(resource, name, pattern, "User:ann", "*", operation, ALLOW)
    return replace(made, **more)  # type: ignore[arg-type]


def set_of(*rules: Rule) -> RuleSet:
    records = {rule_key(rule.id): (n, encode_rule(StoredRule(rule, 0, ""))) for n, rule in enumerate(rules)}
    return rule_set_of(records)


def test_every_acl_that_is_taken_is_shown_as_itself_or_as_the_only_operation_there_is() -> None:
    taken = 0
    for one in EVERY:
        try:
            rule = rule_of(one)
        except InvalidRequest:
            continue
        taken += 1
        [shown] = acls_of(rule)
        if one.operation == Operation.ALL and one.resource != Resource.TOPIC:
            assert shown.operation in (Operation.READ, Operation.WRITE, Operation.ALTER)
            assert replace(one, operation=shown.operation) == shown
        else:
            assert shown == one
        assert rule_of(shown) == rule
        assert exactly(one).matches(shown)
        assert left_of(rule, [shown]) is None
    assert taken > 300


def exactly(one: Acl) -> Filter:
    return Filter(one.resource, one.name, one.pattern, one.principal, one.host, one.operation, one.permission)


def test_what_is_taken_decides_as_kafka_does() -> None:
    ann, bob = Principal("user:ann"), Principal("user:bob", frozenset({"sales"}))
    for given, principal, operation, name, allowed in (
        (acl(Resource.TOPIC, Operation.WRITE), ann, Ours.PRODUCE, "orders", True),
        (acl(Resource.TOPIC, Operation.WRITE), ann, Ours.DESCRIBE, "orders", True),
        (acl(Resource.TOPIC, Operation.WRITE), ann, Ours.CONSUME, "orders", False),
        (acl(Resource.TOPIC, Operation.WRITE), ann, Ours.PRODUCE, "orders.eu", False),
        (acl(Resource.TOPIC, Operation.READ, pattern=Pattern.PREFIXED), ann, Ours.CONSUME, "orders.eu", True),
        (acl(Resource.TOPIC, Operation.ALL, "*"), ann, Ours.DELETE, "anything", True),
        (acl(Resource.TOPIC, Operation.READ, "*", Pattern.PREFIXED), ann, Ours.CONSUME, "anything", False),
        (acl(Resource.TOPIC, Operation.READ, principal="User:*"), bob, Ours.CONSUME, "orders", True),
        (acl(Resource.TOPIC, Operation.READ, principal="group:sales"), bob, Ours.CONSUME, "orders", True),
        (acl(Resource.TOPIC, Operation.READ), bob, Ours.CONSUME, "orders", False),
        (acl(Resource.GROUP, Operation.READ, "my group"), ann, Ours.GROUP, inside("my group"), True),
        (acl(Resource.GROUP, Operation.READ, "*"), ann, Ours.GROUP, inside("my group"), True),
        (acl(Resource.GROUP, Operation.READ, "my", Pattern.PREFIXED), ann, Ours.GROUP, "mine", False),
        (acl(Resource.TRANSACTIONAL_ID, Operation.WRITE, "x-1"), ann, Ours.TRANSACTION, "x-1", True),
        (acl(Resource.CLUSTER, Operation.ALTER, CLUSTER_NAME), ann, Ours.CLUSTER, "", True),
    ):
        rule = rule_of(given)
        assert set_of(rule).decide(principal, operation, name).allowed == allowed, (given, name)
        if allowed:
            denying = rule_of(replace(given, permission=DENY)) if given.pattern == Pattern.LITERAL else None
            if denying is not None and operation in denying.operations:
                assert not set_of(rule, denying).decide(principal, operation, name).allowed


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (acl(Resource.TOPIC, Operation.READ, host="10.0.0.1"), "host"),
        (acl(Resource.TOPIC, Operation.READ, permission=ANY), "permission"),
        (acl(Resource.TOPIC, Operation.READ, pattern=Pattern.MATCH), "LITERAL or PREFIXED"),
        (acl(Resource.TOPIC, Operation.DESCRIBE_CONFIGS), "DESCRIBE shows the settings"),
        (acl(Resource.TOPIC, 77), "operation 77"),
        (acl(77, Operation.READ), "resource type 77"),
        (acl(Resource.USER, Operation.DESCRIBE), "USER"),
        (acl(Resource.GROUP, Operation.DELETE), "give READ"),
        (acl(Resource.TRANSACTIONAL_ID, Operation.DESCRIBE), "give WRITE"),
        (acl(Resource.CLUSTER, Operation.ALTER), CLUSTER_NAME),
        (acl(Resource.CLUSTER, Operation.CREATE, CLUSTER_NAME), "CREATE on topics"),
        (acl(Resource.CLUSTER, Operation.CLUSTER_ACTION, CLUSTER_NAME), "give ALTER"),
        (acl(Resource.TOPIC, Operation.READ, ""), "empty"),
        (acl(Resource.TOPIC, Operation.READ, "x" * 300), "249"),
        (acl(Resource.GROUP, Operation.READ, "ü" * 200), "too long"),
        (acl(Resource.GROUP, Operation.READ, "__kaf", Pattern.PREFIXED), "prefix"),
        (acl(Resource.GROUP, Operation.READ, "my gr", Pattern.PREFIXED), "prefix"),
        (acl(Resource.GROUP, Operation.READ, "my", Pattern.PREFIXED, permission=DENY), "denied by a prefix"),
        (acl(Resource.TOPIC, Operation.READ, principal="ann"), "User:NAME"),
        (acl(Resource.TOPIC, Operation.READ, principal="user:ann"), "User:NAME"),
        (acl(Resource.TOPIC, Operation.READ, principal="User:two words"), "principal"),
    ],
)
def test_what_no_rule_says_is_refused_in_words(given: Acl, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word.replace("*", "[*]")):
        rule_of(given)


def test_an_acl_of_less_than_a_rule_needs_one_that_allows_it_already() -> None:
    for small, large in (
        (acl(Resource.TOPIC, Operation.DESCRIBE_CONFIGS), acl(Resource.TOPIC, Operation.WRITE)),
        (acl(Resource.TOPIC, Operation.ALTER_CONFIGS), acl(Resource.TOPIC, Operation.ALTER)),
        (acl(Resource.GROUP, Operation.DESCRIBE), acl(Resource.GROUP, Operation.READ)),
        (acl(Resource.GROUP, Operation.DELETE), acl(Resource.GROUP, Operation.ALL)),
        (acl(Resource.TRANSACTIONAL_ID, Operation.DESCRIBE), acl(Resource.TRANSACTIONAL_ID, Operation.WRITE)),
        (acl(Resource.CLUSTER, Operation.DESCRIBE, CLUSTER_NAME), acl(Resource.CLUSTER, Operation.ALTER, CLUSTER_NAME)),
    ):
        rule = rule_of(large)
        assert is_included(small, [rule])
        assert not is_included(small, [])
        assert not is_included(small, [rule_of(replace(large, principal="User:bob"))])
        assert not is_included(small, [rule_of(replace(large, permission=DENY))])
        assert not is_included(replace(small, permission=DENY), [rule])
        assert not is_included(replace(small, host="h"), [rule])
        if small.resource != Resource.CLUSTER:
            assert not is_included(replace(small, name="others"), [rule])
            assert not is_included(replace(small, pattern=Pattern.PREFIXED), [rule])
    everyone = acl(Resource.CLUSTER, Operation.IDEMPOTENT_WRITE, CLUSTER_NAME)
    assert is_included(everyone, [])
    assert not is_included(replace(everyone, permission=DENY), [])
    assert not is_included(replace(everyone, name="other"), [])
    assert not any(is_included(one, []) for one in EVERY if one.operation != Operation.IDEMPOTENT_WRITE)


def test_rules_that_no_acl_can_say_are_not_shown_as_others() -> None:
    topics, groups = frozenset({Ours.PRODUCE}), frozenset({Ours.GROUP})
    for rule in (
        Rule(False, "user:*", topics, "a", False),
        Rule(False, "user:a", topics, "*", False),
        Rule(False, "user:a", groups, "my group", False),
        Rule(False, "user:a", groups, inside("*"), False),
    ):
        assert acls_of(rule) == ()


def test_parts_of_a_rule_are_shown_and_taken_out() -> None:
    rule = Rule(False, "user:ann", frozenset({Ours.PRODUCE, Ours.CONSUME, Ours.ALTER}), "o", True)
    shown = acls_of(rule)
    assert [one.operation for one in shown] == [Operation.READ, Operation.WRITE, Operation.ALTER]
    left = left_of(rule, [one for one in shown if one.operation != Operation.WRITE])
    assert left == Rule(False, "user:ann", frozenset({Ours.PRODUCE}), "o", True)
    assert left_of(rule, shown) is None
    [everything] = acls_of(Rule(True, "*", TOPIC_OPERATIONS, "", True))
    assert everything == Acl(Resource.TOPIC, "*", Pattern.LITERAL, "User:*", "*", Operation.ALL, DENY)


def test_filters_choose_as_kafka_s_do() -> None:
    literal, prefixed, all_names = (
        acl(Resource.TOPIC, Operation.READ),
        acl(Resource.TOPIC, Operation.READ, "ord", Pattern.PREFIXED),
        acl(Resource.TOPIC, Operation.READ, "*"),
    )
    group = acl(Resource.GROUP, Operation.READ)
    every = (literal, prefixed, all_names, group)
    for wanted, found in (
        (ANY_ACL, every),
        (replace(ANY_ACL, name="orders"), (literal, group)),
        (replace(ANY_ACL, name="orders", pattern=Pattern.MATCH), every),
        (replace(ANY_ACL, name="orders", pattern=Pattern.MATCH, resource=Resource.TOPIC), every[:3]),
        (replace(ANY_ACL, name="order", pattern=Pattern.MATCH), (prefixed, all_names)),
        (replace(ANY_ACL, name="ord", pattern=Pattern.PREFIXED), (prefixed,)),
        (replace(ANY_ACL, name="orders", pattern=Pattern.PREFIXED), ()),
        (replace(ANY_ACL, name="*", pattern=Pattern.LITERAL), (all_names,)),
        (replace(ANY_ACL, principal="User:ann"), every),
        (replace(ANY_ACL, principal="User:*"), ()),
        (replace(ANY_ACL, host="*"), every),
        (replace(ANY_ACL, host="h"), ()),
        (replace(ANY_ACL, operation=Operation.WRITE), ()),
        (replace(ANY_ACL, operation=Operation.ALL), (group,)),
        (replace(ANY_ACL, permission=DENY), ()),
    ):
        assert tuple(one for one in every if wanted.matches(one)) == found, wanted


def test_random_acls_are_taken_or_refused() -> None:
    rng = random.Random(4711)
    for _ in range(5_000):
        one = Acl(
            rng.randrange(-2, 10),
            rng.choice(NAMES),
            rng.randrange(-1, 6),
            rng.choice(PRINCIPALS),
            rng.choice(("*", "h")),
            rng.randrange(-1, 18),
            rng.randrange(-1, 5),
        )
        is_included(one, [])
        try:
            rule_of(one)
        except InvalidRequest:
            pass
