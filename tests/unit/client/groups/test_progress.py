"""What may be committed is the contiguous prefix of what was finished, against a model that
remembers every single message.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledgermq.client.groups.holding.progress import Progress


def test_only_the_contiguous_prefix_is_finished() -> None:
    progress = Progress(10)
    progress.hand_out(10, 15)
    assert [progress.ack(offset, 0) for offset in (12, 14, 10)] == [True, True, True]
    assert (progress.finished, progress.outstanding, progress.acked_ahead) == (11, 2, 2)
    progress.ack(11, 0)
    assert (progress.finished, progress.outstanding) == (13, 1)
    progress.ack(13, 0)
    assert (progress.finished, progress.outstanding, progress.acked_ahead) == (15, 0, 0)


def test_an_acknowledgement_counts_once_and_not_before_its_message_was_handed_out() -> None:
    progress = Progress(0)
    progress.hand_out(0, 2)
    assert not progress.ack(2, 0)
    assert progress.ack(0, 0)
    assert progress.ack(0, 0), "it is finished"
    assert (progress.finished, progress.outstanding) == (1, 1)


def test_offsets_that_do_not_exist_hold_nothing_up() -> None:
    progress = Progress(0)
    progress.hand_out(5, 7)
    assert progress.finished == 5
    progress.hand_out(20, 21)
    progress.ack(20, 0)
    assert (progress.finished, progress.outstanding) == (5, 2)
    progress.ack(6, 0)
    progress.ack(5, 0)
    assert (progress.finished, progress.outstanding) == (21, 0)


def test_skipped_messages_hold_nothing_up_also_at_the_end() -> None:
    progress = Progress(0)
    progress.skip(0, 3)
    assert (progress.finished, progress.handed, progress.outstanding) == (3, 3, 0)
    progress.hand_out(3, 5)
    progress.skip(6, 8)
    progress.skip(8, 10)
    assert (progress.finished, progress.handed, progress.outstanding) == (3, 10, 2)
    assert (progress.past_gaps(5), progress.past_gaps(4)) == (10, 4)
    progress.ack(4, 0)
    progress.ack(3, 0)
    assert (progress.finished, progress.outstanding) == (10, 0)


def test_messages_that_are_skipped_for_long_are_remembered_in_bounded_space() -> None:
    progress = Progress(0)
    progress.hand_out(0, 1)
    for offset in range(1, 10_000):
        progress.skip(offset, offset + 1)
    assert len(progress._jumps) == 1
    progress.ack(0, 0)
    assert (progress.finished, len(progress._jumps)) == (10_000, 0)


def test_skipped_messages_beside_refused_ones_are_finished_once() -> None:
    progress = Progress(0)
    progress.hand_out(0, 2)
    assert progress.refuse(0, 0)
    progress.finish_returned()
    progress.skip(2, 4)
    progress.finish_returned()
    progress.skip(4, 6)
    progress.finish_returned()
    assert (progress.finished, progress.acked_ahead, progress.outstanding) == (0, 1, 0)
    progress.return_again(0)
    progress.ack(0, progress.generation)
    assert (progress.finished, progress.acked_ahead, progress.outstanding) == (6, 0, 0)


def test_refused_messages_that_wait_hold_up_what_is_finished_behind_them() -> None:
    progress = Progress(0)
    progress.hand_out(0, 3)
    progress.hand_out(5, 10)
    assert progress.held_up_by(progress.waits) == []
    for offset in (0, 5, 8):
        progress.refuse(offset, progress.generation)
    assert progress.held_up_by(progress.waits) == [], "nothing behind them is finished"
    for offset in (1, 2, 6):
        progress.ack(offset, progress.generation)
    assert progress.held_up_by(progress.waits) == [0, 5], "7 is with the program"
    progress.ack(7, progress.generation)
    assert progress.held_up_by(progress.waits) == [0, 5], "nothing behind 8 is finished"
    progress.ack(9, progress.generation)
    assert progress.held_up_by(progress.waits) == [0, 5, 8]
    progress.return_again(5)
    assert progress.held_up_by(progress.waits) == [0], "5 is with the program"
    for offset in (0, 5, 8):
        progress.ack(offset, progress.generation)
    assert (progress.finished, progress.held_up_by(progress.waits)) == (10, [])


def test_after_a_roll_back_only_new_acknowledgements_count_from_there_on() -> None:
    progress = Progress(0)
    progress.hand_out(0, 10)
    progress.ack(7, 0)
    assert progress.roll_back(4, 0)
    assert progress.handed == 4
    progress.hand_out(4, 10)
    assert not progress.ack(5, 0), "this one comes again"
    assert all(progress.ack(offset, 0) for offset in range(4)), "these do not"
    assert (progress.finished, progress.outstanding) == (4, 6)
    assert not progress.roll_back(5, 0), "of the older handing out"
    assert all(progress.ack(offset, 1) for offset in range(4, 10))
    assert progress.finished == 10


def test_what_is_finished_cannot_be_rolled_back() -> None:
    progress = Progress(0)
    progress.hand_out(0, 3)
    progress.finish_through(2)
    assert not progress.roll_back(1, 0)
    assert progress.roll_back(2, 0)
    assert (progress.finished, progress.handed) == (2, 2)


def test_what_is_given_back_is_neither_finished_nor_waited_for() -> None:
    progress = Progress(0)
    progress.hand_out(0, 3)
    progress.give_back(1, 0)
    progress.ack(0, 0)
    progress.ack(2, 0)
    assert (progress.finished, progress.outstanding) == (1, 0)


def test_a_move_begins_anew() -> None:
    progress = Progress(0)
    progress.hand_out(0, 5)
    progress.ack(3, 0)
    progress.move(2)
    assert not progress.ack(4, 0)
    progress.hand_out(2, 5)
    assert progress.ack(2, 1)
    assert progress.finished == 3


def test_endless_roll_backs_are_remembered_in_bounded_space() -> None:
    progress = Progress(0)
    for offset in range(10_000):
        progress.hand_out(offset, offset + 2)
        assert progress.roll_back(offset, progress.generation)
        progress.hand_out(offset, offset + 1)
        assert progress.ack(offset, progress.generation)
    assert len(progress._ends) < 5


class Model(RuleBasedStateMachine):
    """`current`: what the program has, and whether it is done; `ever`: all that was ever handed
    out, as (offset, generation).
    """

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress(5)
        self.base = 5
        self.current: dict[int, tuple[int, str]] = {}
        self.ever: list[tuple[int, int]] = []

    @rule(count=st.integers(1, 6), gap=st.sampled_from([0, 0, 0, 1, 4]))
    def hand_out(self, count: int, gap: int) -> None:
        first = self.progress.handed + gap
        self.progress.hand_out(first, first + count)
        for offset in range(first, first + count):
            self.current[offset] = (self.progress.generation, "out")
            self.ever.append((offset, self.progress.generation))

    @rule(count=st.integers(1, 6), gap=st.sampled_from([0, 0, 0, 1, 4]))
    def skip(self, count: int, gap: int) -> None:
        first = self.progress.handed + gap
        self.progress.skip(first, first + count)

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        if self.ever:
            offset, generation = data.draw(st.sampled_from(self.ever))
            counts = self.current.get(offset, (-1, ""))[0] == generation
            assert self.progress.ack(offset, generation) == (counts or offset < self.progress.finished)
            if counts:
                self.current[offset] = (generation, "done")

    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        if self.ever:
            offset, generation = data.draw(st.sampled_from(self.ever))
            has = self.current.get(offset) == (generation, "out")
            assert self.progress.roll_back(offset, generation) == has
            if has:
                self.current = {each: state for each, state in self.current.items() if each < offset}

    @rule(data=st.data())
    def finish_through(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.progress.handed))
        self.progress.finish_through(offset)
        for each, (generation, _) in self.current.items():
            if each < offset:
                self.current[each] = (generation, "done")

    @rule(position=st.integers(0, 40))
    def move(self, position: int) -> None:
        self.progress.move(position)
        self.current.clear()

    @invariant()
    def prefix(self) -> None:
        out = [offset for offset, (_, state) in self.current.items() if state == "out"]
        assert self.progress.outstanding == len(out)
        assert self.progress.finished == (min(out) if out else self.progress.handed)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.permutations(range(12)))
def test_any_order_of_acknowledgements_ends_at_the_end(order: list[int]) -> None:
    progress = Progress(0)
    progress.hand_out(0, 12)
    done: set[int] = set()
    for offset in order:
        progress.ack(offset, 0)
        done.add(offset)
        assert progress.finished == next(each for each in range(13) if each not in done)
