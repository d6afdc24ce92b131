"""What a member of a share group says about offsets, as our owner hears it."""

from __future__ import annotations

import random

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.shares.leases import Held, Leases, Place, Run, runs_of
from ledgermq_broker.kafka.wire.generated.share_fetch_request import AcknowledgementBatch

PLACE = Place(bytes(16), 0)


def test_batches_become_runs_of_one_word() -> None:
    batches = [AcknowledgementBatch(0, 4, [1, 0, 2, 2, 3]), AcknowledgementBatch(7, 900, [1])]
    assert runs_of(batches) == [
        Run(0, 1, pb.ACCEPT),  # a gap needs nothing, so it goes with what is accepted
        Run(2, 3, pb.RELEASE_SHARE),
        Run(4, 4, pb.REJECT),
        Run(7, 900, pb.ACCEPT),
    ]


@pytest.mark.parametrize(
    "batches",
    [
        [(0, 4, [])],
        [(0, 4, [1, 1])],
        [(4, 3, [1])],
        [(-1, 3, [1])],
        [(0, 4, [4])],
        [(0, 1, [1, -1])],
        [(0, 4, [1]), (4, 5, [1])],
        [(3, 4, [1]), (0, 1, [1])],
    ],
)
def test_batches_that_mean_nothing_are_refused(batches: list[tuple[int, int, list[int]]]) -> None:
    with pytest.raises(InvalidRequest):
        runs_of([AcknowledgementBatch(*each) for each in batches])


def held(first: int, last: int, lease: int, until_s: float = 100.0) -> Held:
    return Held(first, last, 1, lease, until_s)


def said(leases: Leases, first: int, last: int) -> tuple[list[tuple[int, int, int]], bool]:
    spans, are_held = leases.spans(PLACE, [Run(first, last, pb.ACCEPT)])
    return [(span.first, span.last, span.lease) for span in spans], are_held


def test_a_word_names_the_lease_of_each_offset() -> None:
    leases = Leases()
    leases.note(PLACE, [held(0, 4, 7), held(8, 9, 7)], 0.0)
    leases.note(PLACE, [held(5, 6, 8)], 0.0)
    assert said(leases, 0, 6) == ([(0, 4, 7), (5, 6, 8)], True)
    assert said(leases, 3, 8) == ([(3, 4, 7), (5, 6, 8), (8, 8, 7)], False)  # 7 is not leased
    assert said(leases, 7, 7) == ([], False)
    assert said(leases, 9, 10) == ([(9, 9, 7)], False)
    assert leases.spans(Place(bytes(16), 1), [Run(0, 0, pb.ACCEPT)]) == ([], False)


def test_a_later_lease_takes_over_and_one_that_is_over_is_forgotten() -> None:
    leases = Leases()
    leases.note(PLACE, [held(0, 9, 7, until_s=10.0)], 0.0)
    leases.note(PLACE, [held(3, 4, 8, until_s=30.0)], 5.0)
    assert said(leases, 0, 9) == ([(0, 2, 7), (3, 4, 8), (5, 9, 7)], True)
    leases.note(PLACE, [held(20, 20, 9, until_s=40.0)], 11.0)
    assert said(leases, 0, 9) == ([(3, 4, 8)], False)


def test_what_the_owner_has_answered_is_forgotten() -> None:
    leases = Leases()
    leases.note(PLACE, [held(0, 9, 7)], 0.0)
    leases.ended(PLACE, [pb.SharedSpan(first=2, last=3), pb.SharedSpan(first=9, last=9)])
    assert [(place, [(one.first, one.last) for one in spans]) for place, spans in leases.everything(pb.REJECT)] == [
        (PLACE, [(0, 1), (4, 8)])
    ]
    leases.ended(PLACE, [pb.SharedSpan(first=0, last=8)])
    assert not leases


def test_random_lives_agree_with_a_plain_dictionary() -> None:
    rng = random.Random(7)
    for _ in range(300):
        leases, plain = Leases(), dict[int, int]()
        for step in range(30):
            first = rng.randrange(40)
            last = first + rng.randrange(8)
            if rng.random() < 0.5:
                leases.note(PLACE, [held(first, last, step)], 0.0)
                plain |= dict.fromkeys(range(first, last + 1), step)
                continue
            spans, are_held = leases.spans(PLACE, [Run(first, last, pb.ACCEPT)])
            found = {offset: span.lease for span in spans for offset in range(span.first, span.last + 1)}
            assert found == {offset: plain[offset] for offset in range(first, last + 1) if offset in plain}
            assert are_held == (len(found) == last - first + 1)
            if rng.random() < 0.7:
                leases.ended(PLACE, spans)
                for offset in found:
                    del plain[offset]
        assert bool(leases) == bool(plain)
