"""Let the batches of frames in: check each one, find what serves its bundle, hand over, answer.

All calls that bring batches go this way: Produce, Stage, ProduceDelayed. Admission follows the order of the
frames of a stream. A refused batch gets its error in the answer and does not affect other batches. All of a
frame's batches of one bundle are handed over at once. Must not know: what a bundle does with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from ledgermq.errors import LedgerMQError, ResourceExhausted
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.frames import Frame, H
from ledgermq_broker.admission.fair_window import FairWindow
from ledgermq_broker.admission.request_window import answered
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.paths.append_spans import AppendSpans, Arrived
from ledgermq_broker.paths.received_batches import Received, received_batches
from ledgermq_ledger.log.segments.segment import Batch

T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W")
S = TypeVar("S")


@dataclass(slots=True)
class Entry:
    """One batch on its way to an answer: refused with `error`, or `done` returns its base offset.

    `records`: for what needs them decoded. `sequence`: of a staged batch. `owner`: of the bundle to whose
    partition it is appended; None: it goes elsewhere.
    """

    bundle: int | None = None
    batch: Batch | None = None
    error: LedgerMQError | None = None
    records: pa.RecordBatch | None = None
    sequence: int = 0
    done: asyncio.Future[int] | None = None
    owner: BundleOwner | None = None


@dataclass(slots=True)
class Admitted(Generic[W]):
    """A frame whose batches are with their bundles. `whole` None: it was refused as a whole."""

    whole: W | None
    entries: list[Entry]
    traced: Arrived | None = None
    """Its spans, if batches of it are traced."""


class Admission(Generic[H, W, S, A]):
    """`begin(frame)` returns what holds for the whole frame, or raises the error of all its batches. `check` returns a
    valid batch, or raises its error. `find` returns what serves a bundle. `hand_over` gives this the batches of the
    frame, and puts the outcomes into the entries; an error that it raises is that of all which have none.
    `answer` waits for the outcomes. `window`: where frames of several principals wait for their turns. `spans`: of
    traced batches; None: the broker does not trace.
    """

    def __init__(
        self,
        *,
        begin: Callable[[Frame[H]], Awaitable[W]],
        check: Callable[[W, Received], Awaitable[Entry]],
        find: Callable[[W, int], Awaitable[S]],
        hand_over: Callable[[W, Sequence[Entry], S], None],
        answer: Callable[[Admitted[W]], Awaitable[A]],
        window: FairWindow | None = None,
        spans: AppendSpans | None = None,
    ) -> None:
        self._begin = begin
        self._check = check
        self._find = find
        self._hand_over = hand_over
        self._window = window
        self._spans = spans
        self.answer = answer if spans is None else partial(_answered, answer, spans)

    async def stream(self, requests: AsyncIterator[Frame[H]], name: str) -> AsyncIterator[A]:
        """Yield answers in the order of the requests, or when they are known, with the numbers of their frames."""
        async with aclosing(answered(requests, self.admit, self.answer, _number_of, name)) as found:
            async for number, answer in found:
                answer.number = number  # type: ignore[attr-defined]
                yield answer

    async def once(self, frame: Frame[H]) -> A:
        return await self.answer(await self.admit(frame))

    async def admit(self, frame: Frame[H]) -> Admitted[W]:
        """Admit a frame. Raises CorruptFrame if the frame's parts do not fit together; any other error goes into
        the answer.
        """
        if self._window is None or not frame.sender:
            return await self._admit(frame)
        try:
            await self._window.enter(frame.sender, frame.payload_bytes)
        except ResourceExhausted as error:
            return Admitted(None, [Entry(error=error) for _ in frame.header.batches])  # type: ignore[attr-defined]
        served: list[asyncio.Future[int]] = []
        try:
            admitted = await self._admit(frame)
            served = [entry.done for entry in admitted.entries if entry.done is not None]
            return admitted
        finally:
            self._window.left(frame.sender, frame.payload_bytes, served)

    async def _admit(self, frame: Frame[H]) -> Admitted[W]:
        received = received_batches(frame)
        traced = None if self._spans is None else self._spans.arrived([each.header for each in received])
        whole, entries = await self._entries(frame, received)
        if traced is not None and self._spans is not None:
            self._spans.admitted(traced, entries)
        return Admitted(whole, entries, traced)

    async def _entries(self, frame: Frame[H], received: Sequence[Received]) -> tuple[W | None, list[Entry]]:
        try:
            whole = await self._begin(frame)
        except LedgerMQError as error:
            return None, [Entry(error=error) for _ in received]
        entries: list[Entry] = []
        for each in received:
            try:
                entries.append(await self._check(whole, each))
            except LedgerMQError as error:
                entries.append(Entry(error=error))
        _let_go_of_frame(entries)
        by_bundle: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.bundle is not None:
                by_bundle.setdefault(entry.bundle, []).append(entry)
        serving = await _side_by_side(by_bundle, partial(self._find, whole))
        for bundle, group in by_bundle.items():
            try:
                found = serving[bundle]
                if isinstance(found, LedgerMQError):
                    raise found
                self._hand_over(whole, group, found)
            except LedgerMQError as refused:
                for entry in group:
                    entry.error = entry.error or refused
        return whole, entries


async def _answered(answer: Callable[[Admitted[W]], Awaitable[A]], spans: AppendSpans, admitted: Admitted[W]) -> A:
    try:
        return await answer(admitted)
    finally:
        if admitted.traced is not None:
            spans.answered(admitted.traced, admitted.entries)


def _number_of(frame: Frame[Any]) -> int:
    return int(frame.header.number)


def _let_go_of_frame(entries: Sequence[Entry]) -> None:
    """Copy the batches taken from a frame if they are a small part of it.

    A batch is a view of its frame and lives in memory for as long as it is cached. Bounds count
    only the batch, so it must not keep refused batches, or a header of a megabyte.
    """
    taken: dict[int, int] = {}
    for entry in entries:
        if entry.batch is not None and isinstance(entry.batch.data, memoryview):
            frame = id(entry.batch.data.obj)
            taken[frame] = taken.get(frame, 0) + len(entry.batch.data)
    for entry in entries:
        if entry.batch is not None and isinstance(entry.batch.data, memoryview):
            whole = entry.batch.data.obj
            if 2 * taken[id(whole)] < memoryview(whole).nbytes:
                entry.batch = replace(entry.batch, data=bytes(entry.batch.data))
                if entry.records is not None:  # views of the frame
                    entry.records = decode_batch(entry.batch.data)


async def _side_by_side(bundles: Iterable[int], find: Callable[[int], Awaitable[T]]) -> dict[int, T | LedgerMQError]:
    """Return what serves each bundle, or why none does; what is still being opened here is awaited
    concurrently.
    """

    async def found(bundle: int) -> T | LedgerMQError:
        try:
            return await find(bundle)
        except LedgerMQError as error:
            return error

    bundles = list(bundles)
    if len(bundles) == 1:
        [bundle] = bundles
        return {bundle: await found(bundle)}
    return dict(zip(bundles, await asyncio.gather(*(found(bundle) for bundle in bundles)), strict=True))
