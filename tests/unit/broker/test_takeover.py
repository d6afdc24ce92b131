"""Takeover: eager where there is evidence, patient where there is none, and no fights."""

from __future__ import annotations

import random

import pytest

from ledgermq_broker.cluster.placement.takeover import (
    ClaimHistory,
    Evidence,
    is_gone,
    may_claim_back,
    stands_still,
    wait_before_claim_s,
)

INTERVAL_S = 2.0


def seen(
    advanced_at: float,
    *,
    written_after: float | None = None,
    refused_at: float | None = None,
    lost_at: float | None = None,
) -> Evidence:
    return Evidence(
        advanced_at, advanced_at - INTERVAL_S if written_after is None else written_after, refused_at, lost_at
    )


@pytest.mark.parametrize(
    ("evidence", "now", "gone"),
    [
        (seen(100.0), 101.0, False),
        (seen(100.0), 119.0, False),  # silent for long, but nothing else speaks against it
        (seen(100.0), 120.1, True),
        (seen(100.0, refused_at=100.5), 100.6, True),  # its port is closed: no need to wait
        (seen(101.0, written_after=99.0, refused_at=100.5), 101.1, True),  # what it had written before is seen only now
        (seen(103.0, written_after=101.0, refused_at=100.5), 103.1, False),  # it spoke again after that
        (seen(100.0, lost_at=100.5), 103.9, False),  # a broken line alone proves nothing
        (seen(100.0, lost_at=100.5), 104.1, True),
        (seen(100.0, lost_at=90.0), 104.1, False),  # an old broken line is forgotten
    ],
)
def test_gone(evidence: Evidence, now: float, gone: bool) -> None:
    assert is_gone(evidence, now, INTERVAL_S) is gone


def test_waits_double_with_jitter_up_to_half_a_minute() -> None:
    generator = random.Random(1)
    assert wait_before_claim_s(0, generator) == 0
    for claims, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (1000, 30.0)):
        waits = [wait_before_claim_s(claims, generator) for _ in range(200)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
        assert max(waits) - min(waits) > longest / 4


def test_claims_are_counted_by_epochs_and_only_for_a_minute() -> None:
    history = ClaimHistory()
    history.note(17, now=0.0)
    assert history.recent(0.0) == 0, "who held the bundle before we came is no fight that we saw"
    history.note(18, now=10.0)
    history.note(18, now=11.0)
    history.note(21, now=20.0)
    history.note(19, now=21.0)
    assert history.recent(21.0) == 4
    assert history.recent(75.0) == 3
    assert history.recent(90.0) == 0
    assert history.epoch == 21


def test_a_free_bundle_is_claimed_at_once_after_a_fight_but_only_once() -> None:
    generator, history = random.Random(1), ClaimHistory()
    for epoch in range(1, 5):
        history.note(epoch, now=float(epoch))
    assert history.wait_s(5.0, generator) >= 1.0
    history.is_free = True
    assert history.wait_s(5.0, generator) == 0
    history.note_attempt(5.0)
    assert history.wait_s(5.0, generator) >= 2.0, "another broker was faster, and has not said so yet"
    history.note(5, now=6.0)
    assert history.wait_s(6.0, generator) >= 2.0, "the faster broker lives"
    history.is_free = True
    assert history.wait_s(6.0, generator) == 0, "and has ended too"


def test_a_broker_that_lost_a_term_claims_at_once_when_the_winner_has_ended() -> None:
    """As after a start, when brokers claim side by side, and one of them is killed within the
    minute.
    """
    generator, history = random.Random(1), ClaimHistory()
    history.note(1, now=1.0)
    history.note(2, now=2.0)
    history.note_lost(2.0)
    assert history.wait_s(3.0, generator) > 0, "the winner lives"
    history.is_free = True
    assert history.wait_s(3.0, generator) == 0
    history.note_attempt(3.0)
    assert history.wait_s(3.0, generator) > 0


def test_a_broker_that_lost_twice_in_a_minute_waits_longer_and_longer_though_the_bundle_looks_free() -> None:
    """Two brokers that live and refuse each other's connections: each takes the other for ended."""
    generator, history = random.Random(1), ClaimHistory()
    waits = []
    for turn in range(1, 8):
        history.note(2 * turn, now=float(turn))
        history.note_lost(float(turn))
        history.is_free = True
        waits.append(history.wait_s(float(turn), generator))
        history.is_free = False
        history.note(2 * turn + 1, now=turn + 0.5)
    assert waits[0] == 0
    assert waits[1] >= 0.5
    assert waits[-1] >= 15
    history.is_free = True
    assert history.wait_s(7.0 + 61, generator) == 0, "a minute later that is forgotten"


def test_the_claim_of_what_is_free_does_not_count() -> None:
    history = ClaimHistory()
    history.note(1, now=0.0)
    for epoch in range(2, 20):
        history.is_free = True
        history.note(epoch, now=float(epoch))
    assert history.recent(20.0) == 0
    history.is_free = True
    history.note(22, now=21.0)
    assert history.recent(21.0) == 2, "of three claims one took a free bundle; the others fought over it"


def test_failed_attempts_count_and_memory_is_bounded() -> None:
    history = ClaimHistory()
    for i in range(1000):
        history.note_attempt(now=i / 1000)
    assert history.recent(1.0) == 64


def test_a_broker_that_lost_a_term_leaves_the_winner_alone_for_the_holding_time() -> None:
    history = ClaimHistory()
    assert may_claim_back(history, winner_gone=False, now=0.0, holding_s=10)
    history.note_lost(now=100.0)
    assert not may_claim_back(history, winner_gone=False, now=105.0, holding_s=10)
    assert may_claim_back(history, winner_gone=True, now=105.0, holding_s=10)
    assert may_claim_back(history, winner_gone=False, now=110.0, holding_s=10)
    assert history.recent(105.0) == 1


@pytest.mark.parametrize(
    ("evidence", "looked_at", "still"),
    [
        (seen(100.0), 119.0, False),  # silent, and whether it would answer is unknown
        (seen(100.0, lost_at=100.5), 103.9, False),  # its next heartbeat was due at 102, and may be late
        (seen(100.0, lost_at=100.5), 104.1, True),
        (seen(100.0, lost_at=97.0), 104.1, False),  # it has spoken since
        (seen(100.0, refused_at=100.5), 104.1, False),  # it has ended
    ],
)
def test_a_process_that_neither_answers_nor_beats_stands_still(
    evidence: Evidence, looked_at: float, still: bool
) -> None:
    assert stands_still(evidence, looked_at, INTERVAL_S) is still


def test_a_broker_that_stood_still_did_not_fight_for_the_bundles_it_lost() -> None:
    generator, history = random.Random(1), ClaimHistory()
    for turn in range(1, 8):
        history.is_free = True
        history.note(2 * turn, now=10.0 * turn)
        history.note_lost(10.0 * turn, stood_still=True)
        assert history.recent(10.0 * turn) == 0
        history.is_free = True
        assert history.wait_s(10.0 * turn, generator) == 0, "the winner has been stopped in its turn"
        assert not may_claim_back(history, winner_gone=False, now=10.0 * turn + 5, holding_s=10)
        history.note(2 * turn + 1, now=10.0 * turn + 5)
