"""One partition of a queue group: leases, words of members, what is stored, and what the next owner knows."""

from __future__ import annotations

import pytest

from ledgermq_broker.queues.state.limits import ENDED_RUNS_KEPT_MAX
from ledgermq_broker.queues.state.records import ChunkEntry, ShareKey, StartEntry
from ledgermq_broker.queues.state.share_partition import SharePartition, Word
from ledgermq_broker.queues.state.spans import Grant, Span

KEY = ShareKey("workers", 7, 3)
UNTIL_S = 30.0


def begun(start: int = 0, window_max: int = 2000) -> SharePartition:
    found = SharePartition(KEY, window_max)
    found.reset(start)
    found.entries()
    return found


def reloaded(*entries: StartEntry | ChunkEntry) -> SharePartition:
    found = SharePartition(KEY, 2000)
    for entry in entries:
        if isinstance(entry, StartEntry):
            found.load_start(entry)
        else:
            found.load_chunk(entry.chunk, entry.messages)
    found.loaded()
    return found


def test_two_members_share_a_partition() -> None:
    queue = begun(10)
    assert queue.acquire("a", 1, 3, UNTIL_S, 100) == [Grant(10, 12, 1)]
    assert queue.acquire("b", 2, 2, UNTIL_S, 100) == [Grant(13, 14, 1)]
    assert queue.answer(2, Span(13, 14), Word.ACCEPT, 0) == []
    assert (queue.start, queue.end) == (10, 15)
    assert queue.answer(1, Span(10, 12), Word.ACCEPT, 0) == []
    assert (queue.start, queue.end) == (15, 15)


def test_another_lease_does_not_count() -> None:
    queue = begun()
    queue.acquire("a", 1, 3, 5.0, 3)
    assert queue.expire(5.0) == 3
    assert queue.acquire("b", 2, 2, UNTIL_S, 3) == [Grant(0, 1, 2)]
    assert queue.answer(1, Span(0, 2), Word.ACCEPT, 0) == [Span(0, 2)]
    assert queue.answer(1, Span(0, 0), Word.RELEASE, 0) == [Span(0, 0)]
    assert queue.answer(2, Span(0, 0), Word.ACCEPT, 0) == []
    assert queue.answer(1, Span(0, 0), Word.ACCEPT, 0) == [Span(0, 0)], "another lease has finished it"
    assert queue.answer(2, Span(0, 0), Word.ACCEPT, 0) == [], "its answer was lost"
    assert queue.answer(1, Span(0, 0), Word.RENEW, 99.0) == [Span(0, 0)], "finished is not renewed"
    assert queue.answer(2, Span(5, 7), Word.ACCEPT, 0) == [Span(5, 7)], "never leased"


def test_a_repeated_word_counts_for_the_lease_that_finished_the_message() -> None:
    """Also behind and below the start, and for as long as it is known."""
    queue = begun()
    queue.acquire("a", 1, 6, UNTIL_S, 100)
    queue.acquire("b", 2, 6, UNTIL_S, 100)
    assert queue.answer(1, Span(0, 3), Word.ACCEPT, 0) == []
    assert queue.answer(2, Span(8, 9), Word.REJECT, 0) == []
    assert queue.start == 4
    assert queue.answer(1, Span(0, 3), Word.ACCEPT, 0) == []
    assert queue.answer(2, Span(8, 9), Word.ACCEPT, 0) == []
    assert queue.answer(2, Span(0, 11), Word.ACCEPT, 0) == [Span(0, 3), Span(4, 5)]
    assert queue.answer(1, Span(2, 12), Word.ACCEPT, 0) == [Span(6, 11), Span(12, 12)]
    assert queue.answer(1, Span(0, 2**62), Word.ACCEPT, 0) == [Span(6, 11), Span(12, 2**62)], (
        "a word of a broken client"
    )
    assert queue.answer(0, Span(0, 11), Word.ACCEPT, 0) == [Span(0, 11)], "a word about a lease of another owner"
    queue.reset(0)
    assert queue.answer(1, Span(0, 3), Word.ACCEPT, 0) == [Span(0, 3)]


@pytest.mark.parametrize("word", [Word.RELEASE, Word.RETURN])
def test_a_repeated_word_counts_for_the_lease_that_gave_the_message_back(word: Word) -> None:
    queue = begun()
    queue.acquire("a", 1, 4, UNTIL_S, 100)
    assert queue.answer(1, Span(0, 2), word, 0) == []
    stored = queue.entries()
    assert queue.answer(1, Span(0, 2), word, 0) == []
    assert queue.answer(1, Span(0, 3), word, 0) == [], "the one that is leased still, too"
    assert stored
    assert queue.acquire("b", 2, 2, UNTIL_S, 100) == [Grant(0, 1, 2 if word is Word.RELEASE else 1)]
    assert queue.answer(1, Span(0, 3), word, 0) == [], "also when another lease has it"
    other = Word.RETURN if word is Word.RELEASE else Word.RELEASE
    for late in (other, Word.ACCEPT, Word.RENEW):
        assert queue.answer(1, Span(0, 3), late, 99.0) == [Span(0, 3)]
    assert queue.answer(2, Span(0, 1), Word.ACCEPT, 0) == [], "it kept its lease"
    assert queue.answer(1, Span(0, 3), word, 0) == [], "also below the start"
    queue.reset(0)
    assert queue.answer(1, Span(0, 3), word, 0) == [Span(0, 3)]


def test_the_leases_that_finished_messages_are_bounded() -> None:
    queue = begun()
    for number in range(ENDED_RUNS_KEPT_MAX + 1):
        queue.acquire("a", number + 1, 1, UNTIL_S, 10_000)
        assert queue.answer(number + 1, Span(number, number), Word.ACCEPT, 0) == []
    assert queue.answer(1, Span(0, 0), Word.ACCEPT, 0) == [Span(0, 0)]
    assert queue.answer(2, Span(1, 1), Word.ACCEPT, 0) == []


def test_a_released_message_comes_again_at_its_time() -> None:
    queue = begun()
    queue.acquire("a", 1, 2, UNTIL_S, 2)
    queue.answer(1, Span(0, 0), Word.RELEASE, 7.0)
    queue.answer(1, Span(1, 1), Word.RETURN, 0)
    assert queue.acquire("b", 2, 9, UNTIL_S, 2) == [Grant(1, 1, 1)], "a returned message was not delivered"
    assert queue.next_s == 7.0
    assert queue.expire(6.9) == 0
    assert queue.acquire("b", 3, 9, UNTIL_S, 2) == []
    queue.expire(7.0)
    assert queue.acquire("b", 4, 9, UNTIL_S, 2) == [Grant(0, 0, 2)]


def test_a_renewed_lease_lasts() -> None:
    queue = begun()
    queue.acquire("a", 1, 2, 5.0, 2)
    assert queue.answer(1, Span(0, 0), Word.RENEW, 20.0) == []
    assert queue.expire(5.0) == 1
    assert queue.acquire("b", 2, 9, UNTIL_S, 2) == [Grant(1, 1, 2)]
    assert queue.answer(1, Span(0, 0), Word.ACCEPT, 0) == []
    assert queue.start == 1


def test_the_window_is_bounded() -> None:
    queue = begun(window_max=4)
    assert queue.acquire("a", 1, 100, UNTIL_S, 100) == [Grant(0, 3, 1)]
    assert queue.acquire("b", 2, 100, UNTIL_S, 100) == []
    queue.answer(1, Span(1, 3), Word.ACCEPT, 0)
    assert queue.acquire("b", 3, 100, UNTIL_S, 100) == [], "the first one holds the window"
    queue.answer(1, Span(0, 0), Word.REJECT, 0)
    assert queue.acquire("b", 4, 100, UNTIL_S, 100) == [Grant(4, 7, 1)]


def test_deleted_messages_are_finished() -> None:
    queue = begun()
    queue.acquire("a", 1, 6, UNTIL_S, 10)
    queue.log_starts_at(4)
    assert queue.start == 4
    assert queue.answer(1, Span(0, 5), Word.ACCEPT, 0) == []
    assert queue.start == 6
    queue.log_starts_at(500)
    assert (queue.start, queue.end) == (500, 500)
    queue.acquire("a", 2, 3, UNTIL_S, 503)
    queue.gone(Span(500, 501))
    assert queue.start == 502


def test_the_next_owner_knows_what_is_finished_and_counted() -> None:
    queue = begun(250)
    queue.acquire("a", 1, 10, 5.0, 260)
    queue.answer(1, Span(251, 251), Word.ACCEPT, 0)
    queue.answer(1, Span(258, 259), Word.REJECT, 0)
    queue.expire(5.0)
    entries = queue.entries()
    assert [entry.chunk for entry in entries if isinstance(entry, ChunkEntry)] == [0, 1]
    after = reloaded(StartEntry(KEY, 250), *entries)
    assert (after.start, after.end) == (250, 260)
    assert after.acquire("b", 1, 99, UNTIL_S, 260) == [Grant(250, 250, 2), Grant(252, 257, 2)]


def test_a_finished_chunk_leaves_together_with_the_start_above_it() -> None:
    queue = begun(200)
    queue.acquire("a", 1, 60, UNTIL_S, 260)
    queue.answer(1, Span(201, 258), Word.ACCEPT, 0)
    stored = queue.entries()
    assert [entry.chunk for entry in stored if isinstance(entry, ChunkEntry)] == [0, 1]
    queue.answer(1, Span(200, 200), Word.ACCEPT, 0)
    assert queue.start == 259
    entries = queue.entries()
    assert entries == [ChunkEntry(KEY, 0, None), StartEntry(KEY, 259)]
    after = reloaded(StartEntry(KEY, 259), *stored[1:])
    assert (after.start, after.end) == (259, 260)
    assert queue.entries() == []


def test_a_reset_forgets_everything() -> None:
    queue = begun()
    queue.acquire("a", 1, 300, UNTIL_S, 300)
    queue.answer(1, Span(1, 299), Word.ACCEPT, 0)
    queue.entries()
    queue.reset(0)
    assert queue.entries() == [ChunkEntry(KEY, 0, None), ChunkEntry(KEY, 1, None), StartEntry(KEY, 0)]
    assert queue.answer(1, Span(0, 0), Word.ACCEPT, 0) == [Span(0, 0)]
    assert queue.acquire("b", 2, 1, UNTIL_S, 300) == [Grant(0, 0, 1)]


def test_counts_and_leases_are_shown() -> None:
    queue = begun()
    queue.acquire("a", 1, 2, 5.0, 10)
    queue.acquire("b", 2, 2, 9.0, 10)
    queue.answer(2, Span(2, 2), Word.ACCEPT, 0)
    queue.answer(1, Span(1, 1), Word.RELEASE, 20.0)
    assert queue.leases() == [("a", 1, 5.0), ("b", 1, 9.0)]
    counts = queue.counts()
    assert (counts.leased, counts.waiting, counts.finished, counts.members) == (2, 1, 1, 2)


def test_the_number_of_deliveries_is_stored_up_to_a_bound() -> None:
    queue = begun()
    for number in range(70):
        assert queue.acquire("a", number, 1, 5.0, 1) == [Grant(0, 0, min(number + 1, 63))]
        queue.expire(5.0)
