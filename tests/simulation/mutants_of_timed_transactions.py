"""Bugs in timed messages of transactions: in what a commit or an abort does with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq_broker.timed.partition import TimerPartition
from ledgermq_broker.timed.taking_in.intake import Blocks, Intake
from ledgermq_broker.timed.taking_in.room import Sizes
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.types import Part, Reference, State, Stream, Transaction
from tests.simulation.killed_owners import kills_owners
from tests.simulation.mutants import mutant
from tests.simulation.mutants_of_timers import append_apart
from tests.simulation.timers_plan import timers_plan_of

LOADED = True
Patch = pytest.MonkeyPatch


def _together(seed: int) -> bool:
    return timers_plan_of(seed).transactors > 0


@mutant("timers", _together)
def recalls_before_the_message_is_read(patch: Patch) -> None:
    """A message behind those of a transaction is recalled for its sender's time, and may be due later."""
    patch.setattr(TimerPartition, "_check_is_read", lambda self, message: None)


@mutant("timers", _together)
def timed_messages_taken_in_at_an_abort(patch: Patch) -> None:
    """The timed messages of an aborted transaction wait for their delivery."""
    real = TransactionPartition.complete

    async def complete(self: TransactionPartition, transaction: Transaction, outcome: State, part: Part) -> bool:
        found = self.participant._state.find(transaction)
        if not outcome.is_commit and found is not None:
            alive = [
                place.reference
                for stream, places in found.streams.items()
                for place in places.values()
                if stream.is_delayed
            ]
            read = await self._staged.read(sorted(alive, key=_offset))
            if read and self.participant._state.find(transaction) is found:
                blocks = self._copier._timed.made(read)
                self._state._log.append({}, blocks.appends)
                self._copier._timed.issued(blocks, within_s=0.0)
        return await real(self, transaction, outcome, part)

    patch.setattr(TransactionPartition, "complete", complete)


def _offset(reference: Reference) -> int:
    return reference.offset


@mutant("timers", kills_owners)
def blocks_apart_from_the_note(patch: Patch) -> None:
    """A commit's timed messages enter the intake in one segment, and what says so comes in a later one."""
    append_apart(patch, lambda key: key.startswith(b"done/"))


@mutant("timers", _together)
def watermark_passes_blocks_of_a_commit(patch: Patch) -> None:
    """What a commit appends to the intake counts as under way only when it is durable."""

    def issued(self: Intake, blocks: Blocks, *, within_s: float) -> None:
        self._room.come(blocks.sizes)

        def settled(durable: asyncio.Task[None]) -> None:
            self._held.in_flight[durable] = blocks.due_us
            self._log_settled(blocks, durable)

        self._held.state.durable_soon(within_s=within_s).add_done_callback(settled)

    patch.setattr(Intake, "issued", issued)


@mutant("timers", _together)
def watermark_passes_blocks_that_are_not_read(patch: Patch) -> None:
    """What a commit has appended no longer holds the watermark up when it is durable, and not read yet."""
    real = Intake._fall_behind

    def fall_behind(self: Intake, due_us: int, sizes: Sizes) -> None:
        real(self, due_us, sizes)
        self._held.behind_us = None

    patch.setattr(Intake, "_fall_behind", fall_behind)


@mutant("timers", _together)
def staged_timed_messages_freed(patch: Patch) -> None:
    """The log start of staged batches passes the timed messages of branches that are prepared."""
    real = Participant.lowest_offset

    def lowest_offset(self: Participant) -> int | None:
        alive = self._state.alive

        def plain(value: Any) -> list[Reference]:
            return [reference for reference in alive(value) if not reference.stream.is_delayed]

        with pytest.MonkeyPatch.context() as within:
            within.setattr(self._state, "alive", plain)
            return real(self)

    patch.setattr(Participant, "lowest_offset", lowest_offset)


@mutant("timers", _together)
def timed_messages_copied_at_the_commit(patch: Patch) -> None:
    """A commit copies timed messages to their partitions, as it does with others."""
    patch.setattr(Stream, "is_delayed", property(lambda self: False))
