"""What a user would call unhealthy, as one broker of the cluster sees it."""

from __future__ import annotations

from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.cluster.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from ledgermq_broker.health.readiness import ALARM_CHARS_MAX, ALARMS_MAX, CHANGES_MAX, Alarms, problems


def directory(bundles: dict[int, int], troubles: dict[int, str] | None = None) -> Directory:
    """Of two bundles, as `a` says of itself."""
    found = Directory(2)
    beat(found, bundles, troubles)
    return found


def beat(found: Directory, bundles: dict[int, int], troubles: dict[int, str] | None = None, now: float = 0.0) -> None:
    found.update(
        {"a": Heartbeat("a", "a:1", 1, "s", bundles=bundles, troubles=troubles or {})}, now, lambda broker: False
    )


def test_a_cluster_whose_bundles_are_all_owned_is_well() -> None:
    assert problems(directory({0: 1, 1: 1}), [], 0.0) == []


def test_a_bundle_without_an_owner_is_named() -> None:
    [problem] = problems(directory({0: 1}), [], 0.0)
    assert problem.startswith("bundle 1 has no owner, so its partitions are not served: ")


def test_a_trouble_is_told_and_not_the_missing_owner_beside_it() -> None:
    assert problems(directory({0: 1}, {1: "objects/x is damaged"}), [], 0.0) == [
        "bundle 1 is in trouble: objects/x is damaged"
    ]


def test_a_bundle_that_changes_owners_too_often_is_named_for_a_minute() -> None:
    found = directory({0: 1, 1: 1})
    for change in range(CHANGES_MAX):
        beat(found, {0: 1, 1: 2 + change}, now=float(change))
    assert problems(found, [], 5.0) == [], "as many as a start makes"
    beat(found, {0: 1, 1: 9}, now=10.0)
    [problem] = problems(found, [], 10.0)
    assert problem.startswith("bundle 1 changed owners 8 times within a minute: ")
    assert problems(found, [], 71.0) == []


def test_a_claim_of_what_is_free_is_no_fight_and_a_change_all_the_same() -> None:
    found = directory({0: 1, 1: 1})
    found.claims[1].is_free = True
    found.claims[1].note(2, 1.0)
    assert (found.claims[1].recent(1.0), found.claims[1].changes(1.0)) == (0, 1)


def test_alarms_are_told_once_and_bounded() -> None:
    alarms = Alarms()
    assert alarms.now() == ()
    alarms.add(lambda: ["object a is damaged"])
    alarms.add(lambda: ["x" * 10_000])
    assert alarms.now() == ("object a is damaged", "x" * ALARM_CHARS_MAX)
    assert problems(directory({0: 1, 1: 1}), [*alarms.now(), "object a is damaged"], 0.0) == [*alarms.now()]
    alarms.add(lambda: [str(number) for number in range(100)])
    assert len(alarms.now()) == ALARMS_MAX + 1
    assert alarms.now()[-1] == "82 more alarms of this broker are not shown"


def test_alarms_travel_by_heartbeat_and_brokers_of_before_say_none() -> None:
    told = Heartbeat("b", "h:1", 3, "ab", alarms=("object a is damaged",))
    assert decode_heartbeat(encode_heartbeat(told)) == told
    before = decode_heartbeat(encode_heartbeat(told).replace(b'"alarms"', b'"else"'))
    assert before is not None
    assert before.alarms == ()
