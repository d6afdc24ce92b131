"""Assignors: everybody's rules on random problems, then each one's own promise."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.choose import ASSIGNORS, chosen
from ledgermq_offsets.assignors.problem import Candidate, Problem, Target
from ledgermq_offsets.topics import TopicSize

BALANCED = ["uniform", "sticky"]


def topics_of(sizes: list[int]) -> list[TopicSize]:
    return [TopicSize(number + 1, f"t{number + 1}", size) for number, size in enumerate(sizes)]


def alike(members: int, sizes: list[int], current: Target | None = None, first: int = 0) -> Problem:
    topics = topics_of(sizes)
    ids = frozenset(topic.topic_id for topic in topics)
    names = [f"m{number:03}" for number in range(first, first + members)]
    return Problem([Candidate(name, name, ids) for name in names], topics, current or {})


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    topics = topics_of(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    ids = [topic.topic_id for topic in topics]
    count = draw(st.integers(1, 6))
    racks = st.sampled_from(["", "a", "b"])
    members = [
        Candidate(
            f"m{n}",
            draw(st.sampled_from([f"m{n}", f"s{n}"])),
            frozenset(draw(st.sets(st.sampled_from(ids)))),
            draw(racks),
        )
        for n in range(count)
    ]
    somebody = st.sampled_from([member.member_id for member in members] + ["gone"])
    anywhere = st.tuples(st.sampled_from([*ids, 99]), st.integers(0, 7))
    current = draw(st.dictionaries(anywhere, somebody, max_size=20))
    return Problem(
        members, topics, current, (lambda topic, partition: "ab"[partition % 2]) if draw(st.booleans()) else None
    )


@pytest.mark.parametrize("name", ASSIGNORS)
@given(problem=problems())
def test_every_partition_goes_to_one_of_its_subscribers(name: str, problem: Problem) -> None:
    target = ASSIGNORS[name](problem)
    topics_by_member = {member.member_id: member.topics for member in problem.members}
    subscribed = frozenset[int]().union(*topics_by_member.values())
    wanted = {
        PartitionId(topic.topic_id, p)
        for topic in problem.topics
        if topic.topic_id in subscribed
        for p in range(topic.partitions)
    }
    assert target.keys() == wanted
    assert all(partition[0] in topics_by_member[member] for partition, member in target.items())


@pytest.mark.parametrize("name", ASSIGNORS)
@given(problem=problems())
def test_an_assignment_in_force_is_its_own_answer(name: str, problem: Problem) -> None:
    """So a coordinator that takes over moves nothing."""
    target = ASSIGNORS[name](problem)
    again = Problem(list(reversed(problem.members)), list(reversed(problem.topics)), target, problem.rack)
    assert ASSIGNORS[name](again) == target


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=6)
counts = st.integers(1, 8)


@pytest.mark.parametrize("name", BALANCED)
@given(members=counts, sizes=sizes, data=st.data())
def test_members_that_subscribe_alike_get_equally_many(
    name: str, members: int, sizes: list[int], data: st.DataObject
) -> None:
    somebody = st.sampled_from([f"m{number:03}" for number in range(10)])
    current = {PartitionId(t.topic_id, p): data.draw(somebody) for t in topics_of(sizes) for p in range(t.partitions)}
    target = ASSIGNORS[name](alike(members, sizes, current))
    loads = Counter(dict.fromkeys((f"m{number:03}" for number in range(members)), 0))
    loads.update(target.values())
    assert max(loads.values()) - min(loads.values()) <= 1


@given(members=counts, sizes=sizes)
def test_uniform_spreads_each_topic(members: int, sizes: list[int]) -> None:
    target = ASSIGNORS["uniform"](alike(members, sizes))
    for topic in topics_of(sizes):
        mine = Counter(member for partition, member in target.items() if partition[0] == topic.topic_id)
        assert mine.total() == topic.partitions
        assert set(mine.values()) <= {topic.partitions // members, -(-topic.partitions // members)}


@given(members=st.integers(1, 8), sizes=sizes, data=st.data())
def test_sticky_moves_as_little_as_can_be(members: int, sizes: list[int], data: st.DataObject) -> None:
    """Each member gives away only what is above its share: the shares are as large as possible
    where most is held.
    """
    somebody = st.sampled_from([f"m{number:03}" for number in range(members + 1)])  # one of them has left
    current: dict[PartitionId, str] = {
        PartitionId(t.topic_id, p): data.draw(somebody) for t in topics_of(sizes) for p in range(t.partitions)
    }
    target = ASSIGNORS["sticky"](alike(members, sizes, current))
    here = {f"m{number:03}" for number in range(members)}
    held = sorted((list(current.values()).count(member) for member in here), reverse=True)
    share, more = divmod(len(current), members)
    must = sum(max(0, count - share - (rank < more)) for rank, count in enumerate(held))
    moved = sum(1 for partition, member in current.items() if member in here and target[partition] != member)
    assert moved == must


@pytest.mark.parametrize("name", BALANCED)
@given(members=st.integers(1, 7), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=1))
def test_a_member_that_joins_takes_only_its_share(name: str, members: int, sizes: list[int]) -> None:
    before = ASSIGNORS[name](alike(members, sizes))
    after = ASSIGNORS[name](alike(members + 1, sizes, before))
    moved = {partition for partition in before if before[partition] != after[partition]}
    assert {after[partition] for partition in moved} <= {f"m{members:03}"}
    assert len(moved) <= -(-sum(sizes) // (members + 1))


def test_range_gives_the_same_numbers_of_topics_that_are_cut_alike() -> None:
    target = ASSIGNORS["range"](alike(3, [7, 7]))
    mine = {
        m: [sorted(p for (t, p), owner in target.items() if owner == m and t == topic) for topic in (1, 2)]
        for m in target.values()
    }
    assert mine == {"m000": [[0, 1, 2]] * 2, "m001": [[3, 4]] * 2, "m002": [[5, 6]] * 2}


@given(members=st.integers(2, 8), sizes=sizes, gone=st.integers(0, 7))
def test_consistent_hash_moves_only_what_the_one_that_left_had(members: int, sizes: list[int], gone: int) -> None:
    problem = alike(members, sizes)
    before = ASSIGNORS["consistent_hash"](problem)
    left = f"m{gone % members:03}"
    after = ASSIGNORS["consistent_hash"](Problem([m for m in problem.members if m.member_id != left], problem.topics))
    assert all(after[partition] == member for partition, member in before.items() if member != left)


def test_consistent_hash_spreads_many_partitions_roughly() -> None:
    loads = Counter(ASSIGNORS["consistent_hash"](alike(10, [1000])).values())
    assert len(loads) == 10
    assert max(loads.values()) < 200


@pytest.mark.parametrize("name", BALANCED)
def test_partitions_go_where_they_are_near(name: str) -> None:
    topics = topics_of([6])
    members = [Candidate(f"m{n}", f"m{n}", frozenset([1]), "ab"[n % 2]) for n in range(2)]
    target = ASSIGNORS[name](Problem(members, topics, rack=lambda topic, partition: "ba"[partition % 2]))
    assert [target[1, p] for p in range(6)] == ["m1", "m0"] * 3


def test_a_member_that_gives_partitions_up_keeps_the_near_ones() -> None:
    topics = topics_of([4])
    members = [Candidate(f"m{n}", f"m{n}", frozenset([1]), "ab"[n % 2]) for n in range(2)]
    current = {(1, partition): "m0" for partition in range(4)}
    problem = Problem(members, topics, current, lambda topic, partition: "ba"[partition % 2])
    target = ASSIGNORS["uniform"](problem)
    assert [target[1, p] for p in range(4)] == ["m1", "m0"] * 2
    assert ASSIGNORS["uniform"](Problem(members, topics, target, problem.rack)) == target


def test_the_place_of_a_static_member_does_not_depend_on_its_member_id() -> None:
    topics = topics_of([4])
    for name, assign in ASSIGNORS.items():
        first = assign(Problem([Candidate("x", "s1", frozenset([1])), Candidate("b", "b", frozenset([1]))], topics))
        again = assign(Problem([Candidate("b", "b", frozenset([1])), Candidate("y", "s1", frozenset([1]))], topics))
        assert {p: "y" if m == "x" else m for p, m in first.items()} == again, name


@pytest.mark.parametrize(
    ("named", "used"),
    [([], "uniform"), (["range"], "range"), (["sticky", "range", "range"], "range"), (["range", "uniform"], "uniform")],
)
def test_the_group_uses_what_most_members_name(named: list[str], used: str) -> None:
    assert chosen(named) == used
