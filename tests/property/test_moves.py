"""A partition that moves between two ledgers, there and back again, in the product and in its model at
the same time: owners that change, old ones that go on, calls that are repeated, folds of the other
ledger that are old. Both give the same answers and end in the same state.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from ledgermq.errors import NotOwner, OutOfOrderSequence
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.partitions.moves import open_after
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.models import moves as model
from tests.models.terms import NOT_OWNER, Term
from tests.models.walk import Walk
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.ledgers import TOPIC_ID, append_and_wait, batch, ledger_of, read_values, session, take_over

STEPS = 150
KEY = PartitionId(TOPIC_ID, 0)
BUNDLES = (1, 2)
PRODUCERS = {"x": 1, "y": 2}


@dataclass(slots=True)
class Both:
    """The product, `writers`, beside its model: one writer for each term of the model's world."""

    seed: int
    draw: random.Random = field(init=False)
    store: MemoryStore = field(init=False)
    world: model.World = field(init=False)
    writers: dict[int, LedgerWriter] = field(default_factory=dict)
    sequences: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.store = MemoryStore("moves", virtual_sources(self.seed))
        self.world = model.World(Walk(random.Random(self.seed), frozenset(), Counter()))

    def writer(self, term: Term[model.State]) -> LedgerWriter:
        return self.writers[id(term)]

    async def claim(self, ledger: int) -> None:
        sources = virtual_sources(self.draw.getrandbits(32))
        writer = await take_over(ledger_of(self.store, BUNDLES[ledger], sources=sources), "b")
        self.writers[id(self.world.terms[ledger])] = writer

    async def produce(self, term: Term[model.State], name: str) -> None:
        """Send the next record, or one again that was acknowledged."""
        if term.state.partition is None:
            return  # a ledger does not know that a partition never was in it: the catalog does
        sequence = self.sequences[name]
        if sequence and self.draw.random() < 0.3:
            sequence = max(0, sequence - self.draw.randrange(1, 4))
        expected = model.produce(term, self.world, name, sequence)
        writer = self.writer(term)
        opened = writer.durable.moves.opened_slot(KEY, writer.durable.slot + 1)
        sent = batch(f"{name}{sequence}".encode(), producer=session(sequence, PRODUCERS[name], opened))
        known = writer.durable.producers.next_sequence(PRODUCERS[name].to_bytes(16, "big"), *KEY)
        moved = term.is_current and term.state.partition.sealed > 0
        try:
            await append_and_wait(writer, sent)
            answer = model.OK
        except NotOwner as error:
            answer = NOT_OWNER
            moved = moved and f"moved to bundle {BUNDLES[1 - term.ledger]}" not in error.message
        except OutOfOrderSequence:
            answer = model.GAP
        assert not moved, "the refusal names the other bundle"
        if not term.is_current and answer == model.OK:
            assert sequence < known, "an old owner may only repeat what it knew to be stored"
        else:
            assert answer == expected
        if expected == model.OK:
            self.sequences[name] = max(self.sequences[name], sequence + 1)

    async def seal(self, term: Term[model.State], move: model.Move) -> None:
        partition = term.state.partition
        before = max((m.id for m in self.world.moves if m.id < move.id), default=0)
        writer, was_current = self.writer(term), term.is_current
        due = partition is not None and not partition.sealed and partition.move == before
        done = writer.seal(KEY, move.id, BUNDLES[move.target], before)
        assert not was_current or (done is not None) is due
        if done is None:
            return
        model.seal(term, move)
        if was_current:
            assert partition is not None
            assert await done == partition.end
        else:
            with pytest.raises(NotOwner):
                await done

    async def open(self, term: Term[model.State], move: model.Move) -> None:
        """Only a seal in a fold of the other ledger opens; `source`: such a fold, perhaps an old one."""
        source = self.world.owner(move.source)
        seal = self.writer(source).durable.moves.seal_of(KEY)
        stored = source.state.seals.get(move.id)
        if seal is None or seal.move != move.id:
            assert stored is None or move.id < self.world.moves[-1].id
            return
        assert stored is not None
        assert seal.end == stored[0]
        writer, was_current, partition = self.writer(term), term.is_current, term.state.partition
        due = move.id not in term.state.opened and (partition is None or partition.sealed > 0)
        done = writer.open_partition(open_after(seal, BUNDLES[move.source]))
        assert not was_current or (done is not None) is due
        if done is None:
            return
        self.world.checkpoints[term.ledger] = model.Checkpoint()  # the hand-over of files has its own tests
        for _ in model.open_partition(self.world, term, move, source.state):
            pass
        if was_current:
            assert await done == stored[0]
        else:
            with pytest.raises(NotOwner):
                await done

    def decide(self) -> None:
        last = self.world.moves[-1] if self.world.moves else None
        if last is None or last.id in self.world.terms[last.target].state.opened:
            target = 1 if last is None else last.source
            self.world.moves.append(model.Move(len(self.world.moves) + 1, 1 - target, target))

    async def step(self) -> None:
        action, ledger = self.draw.random(), self.draw.randrange(2)
        if action < 0.08:
            self.world.claim(ledger)
            old = self.world._zombies[ledger][-1]
            self.writers[id(old)] = self.writers.pop(id(old))
            await self.claim(ledger)
        elif action < 0.55:
            await self.produce(self.world.owner(ledger), self.draw.choice(sorted(PRODUCERS)))
        elif action < 0.65:
            self.decide()
        elif action < 0.7:
            sources = virtual_sources(self.draw.getrandbits(32))
            await advance_checkpoint(ledger_of(self.store, BUNDLES[ledger], sources=sources))
        else:
            for move in self.world.moves[-2:]:
                if move.source == ledger:
                    await self.seal(self.world.owner(ledger), move)
                else:
                    await self.open(self.world.owner(ledger), move)

    def check(self, ledger: int, state: LedgerState) -> None:
        """The fold of a ledger and the model's are the same."""
        expected = self.world.terms[ledger].state
        partition = expected.partition
        assert state.end(*KEY) == (partition.end if partition is not None else 0)
        assert state.moves.move(KEY) == (max(partition.sealed, partition.move) if partition is not None else 0)
        seal = state.moves.seal_of(KEY)
        assert (seal.move if seal is not None else 0) == (partition.sealed if partition is not None else 0)
        if seal is not None:
            remembered = {p.producer_id: p.batches[-1].sequence for p in seal.producers}
            sealed = expected.seals[seal.move][1]
            assert remembered == {PRODUCERS[name].to_bytes(16, "big"): last for name, last in sealed.items()}
            assert len(state.producers) == 0
        else:
            for name, last in expected.producers.items():
                assert state.producers.next_sequence(PRODUCERS[name].to_bytes(16, "big"), *KEY) == last + 1


@pytest.mark.parametrize("seed", range(60))
@virtual
async def test_the_product_and_its_model_agree(seed: int) -> None:
    both = Both(seed)
    for ledger in range(2):
        await both.claim(ledger)
    for _ in range(STEPS):
        await both.step()
        for ledger in range(2):
            both.check(ledger, both.writer(both.world.terms[ledger]).durable)
    stored: dict[int, bytes] = {}
    for ledger, bundle in enumerate(BUNDLES):
        both.check(ledger, (await recover(ledger_of(both.store, bundle))).state)
        found = await read_values(both.store, bundle=bundle)
        assert not stored.keys() & found.keys(), "an offset is in one ledger only"
        stored |= found
    assert stored == {at: f"{name}{sequence}".encode() for at, (name, sequence) in both.world.values.items()}
    for writer in both.writers.values():
        await writer.close()
