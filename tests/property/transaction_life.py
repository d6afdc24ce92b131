"""Random lives of transactions, and what has to hold after every step: a machine for hypothesis.

`test_transactions` runs it on the true rules and on broken ones. Calls are lost, their answers are
lost, and they come again later; producers share an id, stop and come back; cores are replayed from
their logs at any moment; chunks and carried bytes are admitted late. All or nothing of a transaction
becomes visible, once and in order; once all is quiet, nothing is staged, pending or undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ledgermq.errors import DataDamaged, LedgerMQError, RetriableError
from ledgermq_broker.transactions.state.coordinating.producers import Identity
from ledgermq_broker.transactions.state.participating.completing import Chunk, Completion
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.participating.upkeep import CarryItem
from ledgermq_broker.transactions.state.types import Kind, Part, State, Stream, Transaction
from tests.property.transaction_world import BATCH_BYTES, BUNDLES, GROUP, BundleDesk, CoordinatorDesk

FINE, LOST, UNANSWERED, TWICE = "fine", "lost", "unanswered", "twice"
WAYS = (FINE, FINE, FINE, FINE, FINE, LOST, UNANSWERED, TWICE)
OUTCOMES = (State.COMMITTED, State.COMMITTED, State.COMMITTED, State.ABORTED)
PLACES = ((b"", 0), (b"", 1), (b"x", 0))
STEP = 10
"""Actions of one step. A step of hypothesis is a seed, so that lives get far."""
seeds = st.integers(0, 2**32)


@dataclass(eq=False)
class Work:
    """A producer's state of one transaction. `sent`: CRCs of the batches of each stream. `stored`: number
    of acknowledged batches of each stream, from the first.
    """

    transaction: Transaction
    sent: dict[Stream, list[int]] = field(default_factory=dict)
    stored: dict[Stream, int] = field(default_factory=dict)
    has_offset: bool = False
    is_wrong: bool = False
    """Raised if a producer used a sequence for two batches."""

    def parts(self) -> list[Part]:
        counts: dict[int, dict[Stream, int]] = {stream.topic_id: {} for stream in self.sent}
        for stream, count in self.stored.items():
            counts[stream.topic_id][stream] = count
        if self.has_offset:
            counts.setdefault(1, {})
        return [Part(bundle, counts[bundle], (GROUP,) if self.has_offset and bundle == 1 else ()) for bundle in counts]


class TransactionLife(RuleBasedStateMachine):
    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000_000
        self.desk = CoordinatorDesk(self.random)
        self.bundles = {bundle: BundleDesk(bundle, self.desk, self.random) for bundle in BUNDLES}
        self.late: list[Callable[[], object]] = []
        self.works: dict[int, Work | None] = {0: None, 1: None, 2: None}
        self.singles: list[Work] = []
        self.chunks: list[tuple[int, Chunk]] = []
        self.carried: list[tuple[int, CarryItem]] = []
        self.prepared: set[Transaction] = set()
        self.crc = self.made = 0

    @rule(seed=seeds)
    def live(self, seed: int) -> None:
        self.random.seed(seed)
        draw = self.random.choice
        choice = self.random.randrange(2**16)
        client, bundle, way = draw((0, 1, 2)), draw(BUNDLES), draw(WAYS)
        actions: list[tuple[int, Callable[[], object]]] = [
            (6, lambda: self.transact(client)),
            (2, lambda: self.init(client, way)),
            (1, lambda: self.init_single(draw((True, False)))),
            (4, lambda: self.stage(choice, bundle, draw(PLACES), draw((1, 2, 3)), way)),
            (1, lambda: self.stage_half(choice, bundle, way)),
            (3, lambda: self.stage_another(choice, bundle, draw(PLACES), way)),
            (1, lambda: self.stage_offset(client, way)),
            (2, lambda: self.end(choice, draw(OUTCOMES), way)),
            (1, lambda: self.prepare(choice, way)),
            (1, lambda: self.resolve(choice, draw((True, False)), draw((True, False)))),
            (1, lambda: self.ask_outcome(choice)),
            (6, lambda: self.deliver_late(choice)),
            (3, lambda: self.wait(draw((1, 20, 60, 150, 1500)))),
            (1, self.coordinator_changes_hands),
            (1, lambda: self.bundle_changes_hands(bundle)),
            (6, lambda: self.complete(choice, way)),
            (6, lambda: self.prepare_chunk(bundle, choice)),
            (6, lambda: self.admit_chunk(choice)),
            (2, lambda: self.prepare_carry(bundle)),
            (2, lambda: self.admit_carry(choice)),
            (2, lambda: self.housekeep(bundle)),
            (1, self.check_half_messages),
            (1, self.expire),
            (2, lambda: self.forget_notes(bundle)),
        ]
        for _ in range(STEP):
            choice = self.random.randrange(2**16)
            client, bundle, way = draw((0, 1, 2)), draw(BUNDLES), draw(WAYS)
            self.random.choices([do for _, do in actions], [weight for weight, _ in actions])[0]()

    def send(self, way: str, call: Callable[[], object]) -> object:
        """Return the answer, an error, or None: nothing came back."""
        if way == TWICE or (way != FINE and self.random.random() < 0.7):
            self.late.append(call)
        if way == LOST:
            return None
        answer = self.attempt(call)
        return None if way == UNANSWERED else answer

    def attempt(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except DataDamaged as error:
            raise AssertionError("a decision counts what is not there") from error
        except LedgerMQError as error:
            return error

    # Producers

    def transact(self, client: int) -> None:
        """Go on with a transaction: begin, stage in some places, and perhaps end it."""
        draw = self.random.choice
        if self.works[client] is None:
            self.init(client, draw(WAYS))
        for _ in range(self.random.randrange(4)):
            work = self.works[client]
            if work is not None:
                self.stage_in(work, draw(BUNDLES), draw(PLACES), draw((1, 2, 3)), draw(WAYS))
        if draw((True, False, False)):
            self.stage_offset(client, draw(WAYS))
        if draw((True, True, False)):
            self.end_of(self.works[client], draw(OUTCOMES), draw(WAYS))

    def init(self, client: int, way: str) -> None:
        name = "t2" if client == 2 else "t1"
        coordinator = self.desk.coordinator
        answer = self.send(
            way, lambda: self.desk.run(self.desk.coordinator.producers.init(name, Kind.ORDINARY, 0, "", self.now_ms))
        )
        self.works[client] = None
        if isinstance(answer, Identity):
            assert coordinator.partition == answer.coordinator
            self.works[client] = Work(Transaction(name, 0, answer.producer_id, answer.epoch, 1))

    def init_single(self, two_phase: bool) -> None:
        if len(self.singles) >= 3:
            return
        self.made += 1
        name = f"x{self.made}"
        kind, group = (Kind.TWO_PHASE, "") if two_phase else (Kind.HALF_MESSAGE, "checkers")
        identity = self.desk.run(self.desk.coordinator.producers.init(name, kind, 0, group, self.now_ms))
        self.singles.append(Work(Transaction(name, 0, identity.producer_id, 1, 1)))

    def work(self, choice: int) -> Work | None:
        works = [work for work in self.works.values() if work is not None] + self.singles
        return works[choice % len(works)] if works else None

    def stage(self, choice: int, bundle: int, where: tuple[bytes, int], count: int, way: str) -> None:
        work = self.work(choice)
        if work is None or self.is_half(work):
            return
        self.stage_in(work, bundle, where, count, way)

    def is_half(self, work: Work) -> bool:
        known = {entry.transactional_id: entry.value for entry in self.desk.coordinator.entries()}
        value = known.get(work.transaction.transactional_id)
        return value is not None and value.kind is Kind.HALF_MESSAGE

    def stage_half(self, choice: int, bundle: int, way: str) -> None:
        halves = [work for work in self.singles if self.is_half(work) and not work.sent]
        if halves:
            self.stage_in(halves[choice % len(halves)], bundle, (b"", 0), 1, way)

    def stage_in(self, work: Work, bundle: int, where: tuple[bytes, int], count: int, way: str) -> None:
        stream = Stream(where[0], bundle, where[1])
        sent = work.sent.setdefault(stream, [])
        first = work.stored.get(stream, 0)
        while len(sent) < first + count:
            self.crc += 1
            sent.append(self.crc)
        batches = [
            ToStage(bundle, where[1], sequence, sent[sequence] % 3 + 1, BATCH_BYTES, sent[sequence], 0, 0)
            for sequence in range(first, first + count)
        ]
        transaction = work.transaction
        answer = self.send(way, lambda: self.bundles[bundle].stage(transaction, where[0], batches, self.now_ms))
        if isinstance(answer, list):
            assert all(answer) or work.is_wrong or self.is_dead(transaction), "neither a gap nor another batch"
        if isinstance(answer, list) and all(answer):
            self.note_stored(work, stream, first + count)

    def is_dead(self, transaction: Transaction) -> bool:
        """Apply that the transaction is decided or fenced: staged batches that were not counted may be gone
        without a note.
        """
        coordinator = self.desk.coordinator
        if transaction in self.desk.truth or coordinator.bundles.is_expired(transaction):
            return True
        return coordinator.operators.describe(transaction.transactional_id).transaction.epoch > transaction.epoch

    def stage_another(self, choice: int, bundle: int, where: tuple[bytes, int], way: str) -> None:
        """A client that is wrong: it uses the sequence of a batch without an answer again."""
        work = self.work(choice)
        stream = Stream(where[0], bundle, where[1])
        if work is None or work.stored.get(stream, 0) >= len(work.sent.get(stream, ())):
            return
        at = work.stored.get(stream, 0)
        self.crc += 1
        crc, work.is_wrong = self.crc, True
        batch = ToStage(bundle, where[1], at, 1, BATCH_BYTES, crc, 0, 0)
        transaction = work.transaction
        answer = self.send(way, lambda: self.bundles[bundle].stage(transaction, where[0], [batch], self.now_ms))
        if answer == [True]:
            work.sent[stream][at:] = [crc]
            self.note_stored(work, stream, at + 1)

    def note_stored(self, work: Work, stream: Stream, count: int) -> None:
        work.stored[stream] = count
        for sequence, crc in enumerate(work.sent[stream][:count]):
            self.desk.acknowledged[work.transaction, stream, sequence] = crc

    def stage_offset(self, client: int, way: str) -> None:
        work = self.works[client]
        if work is None:
            return
        transaction = work.transaction

        def call() -> str:
            self.bundles[1].stage_offset(transaction)
            return "staged"

        work.has_offset = self.send(way, call) == "staged" or work.has_offset

    def end(self, choice: int, outcome: State, way: str) -> None:
        self.end_of(self.work(choice), outcome, way)

    def end_of(self, work: Work | None, outcome: State, way: str) -> None:
        if work is None:
            return
        transaction, parts = work.transaction, work.parts()
        answer = self.send(
            way, lambda: self.desk.run(self.desk.coordinator.producers.end(transaction, outcome, parts, self.now_ms))
        )
        if answer is None or isinstance(answer, RetriableError):
            self.replace(work, None)  # it does not know, and begins again
        elif isinstance(answer, State):
            assert self.desk.truth[transaction] == answer.is_commit
            self.replace(work, Work(transaction._replace(number=transaction.number + 1)))
        else:
            self.replace(work, None)

    def replace(self, work: Work, by: Work | None) -> None:
        if work in self.singles:
            self.singles.remove(work)
        for client, other in self.works.items():
            if other is work:
                self.works[client] = by

    def prepare(self, choice: int, way: str) -> None:
        if not self.singles:
            return
        work = self.singles[choice % len(self.singles)]
        transaction, parts = work.transaction, work.parts()
        answer = self.send(
            way,
            lambda: self.desk.run(self.desk.coordinator.producers.end(transaction, State.PREPARED, parts, self.now_ms)),
        )
        if answer is State.PREPARED:
            self.prepared.add(transaction)

    def resolve(self, choice: int, commit: bool, by_operator: bool) -> None:
        prepared = [
            entry for entry in self.desk.coordinator.entries() if entry.value and not entry.value.state.is_final
        ]
        prepared = [entry for entry in prepared if entry.value and entry.value.number]
        if prepared:
            name = prepared[choice % len(prepared)].transactional_id
            self.finish_prepared(name, commit, by_operator)

    def finish_prepared(self, name: str, commit: bool, by_operator: bool) -> None:
        coordinator = self.desk.coordinator
        if by_operator:
            self.desk.run(coordinator.operators.resolve(name, commit, self.now_ms))
            return
        outcome = State.COMMITTED if commit else State.ABORTED
        named = Transaction(name, 0, b"", 0, 0)
        assert self.desk.run(coordinator.producers.end(named, outcome, (), self.now_ms)) is outcome

    def ask_outcome(self, choice: int) -> None:
        work = self.work(choice)
        if work is None:
            return
        transaction = work.transaction
        name, outcome = transaction.transactional_id, self.desk.coordinator.producers.outcome
        answer = self.attempt(lambda: self.desk.run(outcome(name, transaction.epoch, transaction.number, self.now_ms)))
        if self.desk.coordinator.bundles.is_expired(transaction):
            return  # the answer is about another producer, which has the id now
        if isinstance(answer, tuple) and answer[0] is not State.PREPARED:
            is_commit = self.desk.truth.get(transaction, False)  # none is recorded for what an epoch has fenced
            assert is_commit == answer[0].is_commit

    # The network, time and takeovers

    def deliver_late(self, choice: int) -> None:
        if self.late:
            self.attempt(self.late[choice % len(self.late)])

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.desk.loop_s += ms / 1000

    def coordinator_changes_hands(self) -> None:
        self.desk.take_over(self.now_ms)

    def bundle_changes_hands(self, bundle: int) -> None:
        self.bundles[bundle].take_over()

    # Brokers

    def complete(self, choice: int, way: str) -> None:
        todo = self.desk.coordinator.bundles.to_complete()
        if not todo:
            return
        transaction, state, part = todo[choice % len(todo)]

        def call() -> Completion:
            return self.bundles[part.bundle].complete_and_confirm(transaction, state, part)

        if self.send(way, call) is Completion.DONE:
            self.desk.run(self.desk.coordinator.bundles.completed(transaction, part.bundle, self.now_ms))

    def prepare_chunk(self, bundle: int, choice: int) -> None:
        desk = self.bundles[bundle]
        unfinished = desk.participant.completing.unfinished()
        if unfinished:
            chunk = desk.participant.completing.next_chunk(unfinished[choice % len(unfinished)].producer_id)
            assert chunk is not None
            desk.read(chunk.references)
            self.chunks.append((bundle, chunk))

    def admit_chunk(self, choice: int) -> None:
        if self.chunks:
            bundle, chunk = self.chunks.pop(choice % len(self.chunks))
            self.bundles[bundle].admit(chunk)

    def prepare_carry(self, bundle: int) -> None:
        desk = self.bundles[bundle]
        self.carried += [(bundle, item) for item in desk.participant.upkeep.to_carry(self.now_ms, desk.end)]

    def admit_carry(self, choice: int) -> None:
        if self.carried:
            bundle, item = self.carried.pop(choice % len(self.carried))
            self.bundles[bundle].carry(item, self.now_ms)
            self.bundles[bundle].trim()

    def housekeep(self, bundle: int) -> None:
        self.bundles[bundle].housekeep(self.now_ms)

    def check_half_messages(self) -> None:
        for transaction, group in self.desk.coordinator.half_messages.due_checks(self.now_ms):
            assert group == "checkers"
            self.desk.run(self.desk.coordinator.half_messages.checked(transaction, self.now_ms))
        for transaction in self.desk.coordinator.half_messages.unresolved(self.now_ms):
            self.desk.run(self.desk.coordinator.half_messages.declare_unresolved(transaction, self.now_ms))

    def expire(self) -> None:
        self.desk.run(self.desk.coordinator.expiry.expire(self.now_ms))
        self.desk.run(self.desk.coordinator.expiry.expire_half(self.now_ms))

    def forget_notes(self, bundle: int) -> None:
        participant = self.bundles[bundle].participant
        for transaction in participant.upkeep.notes():
            if self.desk.coordinator.bundles.is_expired(transaction):
                self.bundles[bundle].run(participant.upkeep.forget(transaction))

    # All is quiet

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        for entry in self.desk.coordinator.entries():
            if entry.value is not None and entry.value.state is State.PREPARED:
                self.finish_prepared(entry.transactional_id, commit=True, by_operator=False)
        for _ in range(30):
            self.wait(60)
            self.one_quiet_round()
        assert not self.desk.coordinator.bundles.to_complete()
        assert self.prepared <= self.desk.truth.keys(), "what is prepared is never lost"
        for desk in self.bundles.values():
            participant = desk.participant
            assert not participant.completing.unfinished()
            assert not desk.pending
            assert (participant.open_count, participant.staged_bytes, participant.staged_batches) == (0, 0, 0)
            assert participant.lowest_offset() is None
        self.check_all_or_nothing()

    def one_quiet_round(self) -> None:
        for transaction, state, part in self.desk.coordinator.bundles.to_complete():
            if self.bundles[part.bundle].complete_and_confirm(transaction, state, part) is Completion.DONE:
                self.desk.run(self.desk.coordinator.bundles.completed(transaction, part.bundle, self.now_ms))
        for desk in self.bundles.values():
            for transaction in desk.participant.completing.unfinished():
                while (chunk := desk.participant.completing.next_chunk(transaction.producer_id)) is not None:
                    desk.read(chunk.references)
                    if not desk.admit(chunk):
                        break
            desk.housekeep(self.now_ms)
        self.check_half_messages()

    def check_all_or_nothing(self) -> None:
        for transaction, parts in self.desk.counted.items():
            if not self.desk.truth.get(transaction):
                continue
            for part in parts:
                desk = self.bundles[part.bundle]
                for stream, count in part.counts.items():
                    assert len(desk.shown.get((transaction, stream), ())) == count
                assert desk.settled.count(transaction) == len(part.groups)
