"""Check a partition of a queue group against a plain model in random lives, with owners that come and go, and that
the same lives find rules that are broken on purpose.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from ledgermq_broker.queues.state.bundle_shares import Answer, BundleShares
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_broker.queues.state.share_partition import SharePartition, Word
from ledgermq_broker.queues.state.spans import Grant, Span
from ledgermq_ledger.log.log_record import Decision

KEY = ShareKey("workers", 7, 3)
ENDS = {Word.ACCEPT: Word.ACCEPT, Word.REJECT: Word.ACCEPT, Word.RELEASE: Word.RELEASE, Word.RETURN: Word.RETURN}
"""The words that end a lease: those with one value repeat each other."""
STEPS = 400


class Life:
    """Records that were not lost are in `log`: the newest value of each key."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.limits = ShareLimits(window_max=self.random.choice((3, 50, 700)))
        self.log: dict[bytes, bytes | None] = {}
        self.end = self.log_start = 0
        self.now_s = 0.0
        self.number = 0
        self.held: dict[int, tuple[int, float]] = {}
        """offset -> (lease, until)"""
        self.finished: set[int] = set()
        self.ended: set[tuple[int, int, Word | None]] = set()
        """(offset, lease, the word that ended it), in this life of the state"""
        self.deliveries: Counter[int] = Counter()
        self.saw: Counter[str] = Counter()
        self.shares = BundleShares(self.limits)
        self.take(self.shares.begin(KEY, 0))

    @property
    def queue(self) -> SharePartition:
        return self.shares.partitions[KEY]

    def take(self, decision: Decision[object]) -> None:
        records = list(decision.records)
        self.random.shuffle(records)
        for record in records:
            self.log[record.key] = record.value

    def run(self) -> None:
        steps: list[Callable[[], None]] = [self.grow, self.acquire, self.acquire, self.answer, self.answer, self.expire]
        for _ in range(STEPS):
            self.now_s += self.random.random()
            self.random.choice([*steps, self.seldom] if self.random.random() < 0.05 else steps)()
            self.check()
        self.finish()

    def seldom(self) -> None:
        self.random.choice([self.reload, self.reload, self.delete, self.reset])()

    def grow(self) -> None:
        self.end += self.random.choice((1, 5, 200))

    def acquire(self) -> None:
        self.queue.log_starts_at(self.log_start)
        self.expire()
        self.number += 1
        until_s = self.now_s + self.random.choice((2.0, 20.0))
        wanted = self.random.choice((1, 7, 300))
        for grant in self.queue.acquire("a", self.number, wanted, until_s, self.end):
            self.granted(grant, until_s)

    def granted(self, grant: Grant, until_s: float) -> None:
        for offset in range(grant.first, grant.last + 1):
            assert offset not in self.finished, f"{offset} is finished"
            assert offset not in self.held, f"{offset} is leased"
            assert self.log_start <= offset < self.end
            self.deliveries[offset] += 1
            assert grant.deliveries == min(63, self.deliveries[offset]), f"{offset} has other deliveries"
            self.held[offset] = self.number, until_s

    def answer(self) -> None:
        if not self.held:
            return
        number, _ = self.random.choice(sorted(self.held.values()))
        mine = sorted(offset for offset, (of, _) in self.held.items() if of == number)
        first = self.random.choice(mine)
        span = Span(first, first + self.random.choice((0, 3, 100)))
        named = number if self.random.random() < 0.9 else number + 1000
        word = self.random.choice((Word.ACCEPT, Word.ACCEPT, *Word))
        until_s = self.now_s + self.random.choice((1.0, 9.0)) if word in (Word.RENEW, Word.RELEASE) else 0.0
        decision = self.shares.answer(KEY, [Answer(named, span, word, until_s)])
        self.take(decision)
        late = {offset for [*spans] in decision.answer for one in spans for offset in range(one.first, one.last + 1)}
        for offset in range(span.first, span.last + 1):
            holds = self.held.get(offset, (None, 0.0))[0] == named
            again = (offset, named, ENDS.get(word)) in self.ended
            self.saw["again"] += again
            assert (offset in late) != (holds or again), (offset, word, holds, again)
            if holds:
                self.said(offset, word, until_s)

    def said(self, offset: int, word: Word, until_s: float) -> None:
        self.saw[word.value] += 1
        if word is Word.RENEW:
            self.held[offset] = self.held[offset][0], until_s
            return
        number, _ = self.held.pop(offset)
        self.ended.add((offset, number, ENDS[word]))
        if word in (Word.ACCEPT, Word.REJECT):
            self.finished.add(offset)
        if word is Word.RETURN:
            self.deliveries[offset] -= 1

    def expire(self) -> None:
        decision = self.shares.expire(self.now_s)
        self.take(decision)
        ended = {offset for offset, (_, until_s) in self.held.items() if until_s <= self.now_s}
        assert sum(decision.answer.values()) == len(ended)
        self.saw["expired"] += len(ended)
        for offset in ended:
            del self.held[offset]

    def reload(self) -> None:
        """The next owner: leases, and deliveries that were not written, are forgotten."""
        self.shares = BundleShares(self.limits)
        for key, value in self.log.items():
            if value is not None:
                self.shares.apply(key, value)
        self.shares.loaded()
        self.saw["reloaded"] += 1
        lost = set(self.held)
        self.held.clear()
        self.ended.clear()
        for offset in lost:  # at least what was stored when their leases before ended
            self.deliveries[offset] = self.stored_deliveries(offset)

    def stored_deliveries(self, offset: int) -> int:
        queue = self.queue
        return queue._chunks[offset // 256][offset % 256] // 4 if offset // 256 in queue._chunks else 0

    def delete(self) -> None:
        self.log_start = self.random.randint(self.log_start, self.end)
        self.queue.log_starts_at(self.log_start)
        self.saw["deleted"] += 1
        self.ended |= {(at, number, Word.ACCEPT) for at, (number, _) in self.held.items() if at < self.log_start}
        self.held = {offset: held for offset, held in self.held.items() if offset >= self.log_start}

    def reset(self) -> None:
        to = self.random.randint(self.log_start, self.end)
        self.take(self.shares.reset(KEY, to))
        self.saw["reset"] += 1
        self.held.clear()
        self.ended.clear()
        self.finished = set(range(to))
        self.deliveries.clear()

    def check(self) -> None:
        queue = self.queue
        assert queue.start >= self.log_start or not queue.end or queue.start <= self.log_start
        assert all(offset in self.finished or offset < self.log_start for offset in range(queue.start))
        assert queue.end - queue.start <= self.limits.window_max
        counts = queue.counts()
        assert counts.leased == len(self.held)

    def finish(self) -> None:
        """Accept everything: nothing is left, and the log holds one record."""
        for _ in range(10_000):
            self.now_s += 50
            self.acquire()
            if not self.held:
                break
            for number in sorted({number for number, _ in self.held.values()}):
                self.take(self.shares.answer(KEY, [Answer(number, Span(0, self.end), Word.ACCEPT, 0.0)]))
            self.finished |= set(self.held)
            self.held.clear()
        assert self.queue.start == self.end
        assert not [key for key, value in self.log.items() if value is not None and key.startswith(b"w/")][1:]


@pytest.mark.parametrize("seed", range(12))
def test_a_life_of_a_queue(seed: int) -> None:
    life = Life(seed)
    life.run()
    assert life.saw["accept"]
    assert life.saw["expired"]
    assert life.saw["again"]


Mutate = Callable[[pytest.MonkeyPatch], None]


def leases_are_ignored(patch: pytest.MonkeyPatch) -> None:
    true = SharePartition.answer

    def answer(self: SharePartition, number: int, span: Span, word: Word, until_s: float) -> list[Span]:
        held = self._leases.get(span.first)
        return true(self, number if held is None else held.number, span, word, until_s)

    patch.setattr(SharePartition, "answer", answer)


def chunks_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharePartition, "load_chunk", lambda self, chunk, messages: None)


def deliveries_are_not_written(patch: pytest.MonkeyPatch) -> None:
    true = SharePartition._reopen

    def reopen(self: SharePartition, offsets: list[int], until_s: float = 0.0) -> None:
        dirty = set(self._dirty)
        true(self, offsets, until_s)
        self._dirty = dirty

    patch.setattr(SharePartition, "_reopen", reopen)


def the_window_has_no_bound(patch: pytest.MonkeyPatch) -> None:
    true = SharePartition.acquire

    def acquire(
        self: SharePartition, member: str, number: int, records_max: int, until_s: float, end: int
    ) -> list[Grant]:
        self._window_max = 1 << 40
        return true(self, member, number, records_max, until_s, end)

    patch.setattr(SharePartition, "acquire", acquire)


def a_reset_keeps_chunks(patch: pytest.MonkeyPatch) -> None:
    true = SharePartition.reset

    def reset(self: SharePartition, start: int) -> None:
        true(self, start)
        self._dirty.clear()

    patch.setattr(SharePartition, "reset", reset)


@pytest.mark.parametrize(
    "mutate",
    [
        leases_are_ignored,
        chunks_are_not_loaded,
        deliveries_are_not_written,
        the_window_has_no_bound,
        a_reset_keeps_chunks,
    ],
    ids=lambda mutate: mutate.__name__,
)
def test_a_broken_rule_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(40):
        try:
            Life(seed).run()
        except (AssertionError, KeyError):
            return
    pytest.fail("40 lives did not find it")
