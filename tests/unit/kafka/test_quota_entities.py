"""Subjects of our quotas and entities of Kafka's say the same, or are refused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq_broker.access.state.quotas import Subject
from ledgermq_broker.kafka.handlers.security.entities import Filter, change_of, shown, values

Parts = list[tuple[str, str | None]]


@dataclass
class Entry:
    """As the generated message has it."""

    parts: Parts
    changes: list[tuple[str, float | None]] = field(default_factory=list)

    @property
    def entity(self) -> list[Any]:
        return [SimpleNamespace(entity_type=kind, entity_name=name) for kind, name in self.parts]

    @property
    def ops(self) -> list[Any]:
        return [SimpleNamespace(key=key, value=value or 0.0, remove=value is None) for key, value in self.changes]


@pytest.mark.parametrize(
    ("parts", "subject"),
    [
        ([("user", "ann")], Subject("user:ann")),
        ([("user", None)], Subject("*")),
        ([("user", "cert:a.example")], Subject("cert:a.example")),
        ([("user", "jwt:sub")], Subject("jwt:sub")),
        ([("user", "ANONYMOUS")], Subject("anonymous")),
        ([("user", "ann"), ("client-id", "batch")], Subject("user:ann", "batch")),
        ([("client-id", None), ("user", "ann")], Subject("user:ann", "*")),
        ([("user", None), ("client-id", "batch")], Subject("*", "batch")),
        ([("user", None), ("client-id", None)], Subject("*", "*")),
    ],
)
def test_an_entity_is_a_subject_and_back(parts: Parts, subject: Subject) -> None:
    assert change_of(Entry(parts)).subject == subject
    assert shown(subject) == dict(parts)


@pytest.mark.parametrize("subject", [Subject("user:ANONYMOUS"), Subject("user:jwt:x"), Subject("user:user:x")])
def test_a_subject_that_would_be_shown_as_another_is_not_shown(subject: Subject) -> None:
    assert shown(subject) is None


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ([], "an entity has a user"),
        ([("client-id", "batch")], "default user"),
        ([("client-id", None)], "default user"),
        ([("ip", "10.0.0.1")], "not for addresses"),
        ([("user", "ann"), ("ip", None)], "not for addresses"),
        ([("user", "ann"), ("user", "bob")], "twice"),
        ([("group", "x")], "unknown"),
        ([("user", "User:ann")], "the name alone"),
        ([("user", "two words")], "principal"),
        ([("user", "")], "principal"),
        ([("user", "ann"), ("client-id", "")], "client id"),
        ([("user", "ann"), ("client-id", "*")], "client id"),
        ([("user", "ann"), ("client-id", "two words")], "client id"),
    ],
)
def test_an_entity_without_a_subject_is_refused_in_words(parts: Parts, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        change_of(Entry(parts))


def test_limits_are_set_and_dropped() -> None:
    found = change_of(Entry([("user", "ann")], [("producer_byte_rate", 1e6), ("consumer_byte_rate", None)]))
    assert (dict(found.given), list(found.dropped)) == ({"bytes_in": 1_000_000}, ["bytes_out"])
    assert values({"bytes_in": 5, "requests": 7}) == {"producer_byte_rate": 5.0}
    assert values({"requests": 7}) == {}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ([("request_percentage", 50.0)], "calls a second"),
        ([("controller_mutation_rate", 1.0)], "no such limit"),
        ([("producer_bytes", 1.0)], "unknown"),
        ([("producer_byte_rate", 0.5)], "whole number"),
        ([("producer_byte_rate", float("nan"))], "whole number"),
        ([("producer_byte_rate", float("inf"))], "whole number"),
        ([("producer_byte_rate", 0.0)], "must be 1"),
        ([("producer_byte_rate", -1.0)], "must be 1"),
        ([("producer_byte_rate", 9.3e18)], "must be 1"),
        ([("producer_byte_rate", 1.0), ("producer_byte_rate", None)], "twice"),
    ],
)
def test_a_limit_that_there_is_none_of_is_refused_in_words(changes: list[tuple[str, float | None]], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        change_of(Entry([("user", "ann")], changes))


def filtered(*components: tuple[str, int, str | None], strict: bool = False) -> Filter:
    parts = [SimpleNamespace(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    return Filter.of(SimpleNamespace(components=parts, strict=strict))


def test_filters_choose_as_kafka_s_do() -> None:
    ann: dict[str, str | None] = {"user": "ann"}
    default: dict[str, str | None] = {"user": None}
    batch: dict[str, str | None] = {"user": "ann", "client-id": "batch"}
    every = [ann, default, batch]
    for wanted, found in (
        (filtered(), every),
        (filtered(strict=True), []),
        (filtered(("user", 2, None)), every),
        (filtered(("user", 2, None), strict=True), [ann, default]),
        (filtered(("user", 0, "ann")), [ann, batch]),
        (filtered(("user", 0, "ann"), strict=True), [ann]),
        (filtered(("user", 1, None)), [default]),
        (filtered(("client-id", 2, None)), [batch]),
        (filtered(("client-id", 0, "batch"), ("user", 0, "ann"), strict=True), [batch]),
        (filtered(("client-id", 1, None)), []),
        (filtered(("ip", 2, None)), []),
    ):
        assert [one for one in every if wanted.matches(one)] == found


@pytest.mark.parametrize(
    "components",
    [
        [("user", 3, None)],
        [("user", 0, None)],
        [("user", 1, "ann")],
        [("user", 2, "ann")],
        [("topic", 0, "t")],
        [("user", 2, None), ("user", 2, None)],
    ],
)
def test_a_filter_that_means_nothing_is_refused(components: list[tuple[str, int, str | None]]) -> None:
    with pytest.raises(InvalidRequest):
        filtered(*components)


def test_random_entries_are_taken_or_refused() -> None:
    rng = random.Random(4711)
    kinds = ("user", "client-id", "ip", "x")
    names = (None, "", "ann", "*", "jwt:x", "jwt:", "ANONYMOUS", "a b", "ü", "x" * 400, "\0")
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "")
    numbers = (None, 0.0, 1.0, -1.0, 0.5, 1e15, 1e16, 1e300, float("nan"))
    for _ in range(20_000):
        parts = [(rng.choice(kinds), rng.choice(names)) for _ in range(rng.randrange(4))]
        changes = [(rng.choice(keys), rng.choice(numbers)) for _ in range(rng.randrange(3))]
        try:
            found = change_of(Entry(parts, changes))
        except InvalidRequest:
            continue
        assert shown(found.subject) == dict(parts)
