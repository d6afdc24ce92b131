"""Take a cut, at the controller: begin, pin, hold, place, confirm, fix (docs/design.md, chapter 23).

No ledger of users is written but for one checkpoint each, so the hold is checked twice instead: every owner is quiet
before the first place is taken (I1), and every hold is unbroken after the last one (I3). Whatever breaks one ends the
attempt; the pins stay, and the next attempt places again. A cut of which no attempt succeeds is abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq.errors import LedgerMQError, ResourceExhausted, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.heartbeat import PINS
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.controller import Controller
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.automatic import Schedule, is_due, keep_ms_of, name_at
from ledgermq_ledger.cuts.cut import put_cut
from ledgermq_ledger.cuts.record import abandoned, begun, cut_in, encode, key_of, taken
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.topics.catalog import Catalog

ATTEMPTS_MAX = 3
ATTEMPT_PAUSE_S = 0.1

log = get_logger(__name__)


class Broken(Unavailable):
    """An attempt failed, and the next one may succeed."""


@dataclass(slots=True)
class Places:
    """What the owners answer, by bundle."""

    epochs: dict[int, int] = field(default_factory=dict)
    holds: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    versions: dict[int, list[pb.PlacedVersion]] = field(default_factory=dict)


class Taking:
    def __init__(self, compaction: Compaction, controller: Controller, metadata: Metadata, calls: BundleCalls) -> None:
        self._compaction = compaction
        self._controller = controller
        self._metadata = metadata
        self._calls = calls

    async def take(self, name: str, keep_ms: int, nonce: bytes) -> fmt.CutRecord:
        """Take a cut; a call with the nonce of an earlier one returns what that took, or takes it again.

        Raises what `begun` raises, ResourceExhausted at the bound of pins, and Unavailable, naming the bundle, if no
        attempt succeeded; then nothing is left of it but what `ledgermq cut list` shows for a while.
        """
        before, now_ms = self._metadata.catalog.offset, await self._now_ms()
        until_ms = now_ms + keep_ms if keep_ms else 0

        def begin(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
            record = begun(catalog, name, until_ms, nonce, now_ms)
            return [] if record.id else [(key_of(name), encode(record))]

        await self._controller.put_rules(begin, PINS)
        return await self._finish(cut_in(self._metadata.catalog, name), before)

    async def take_if_due(self, schedule: Schedule) -> fmt.CutRecord | None:
        """Take an automatic cut; None if none is due by the catalog in the turn that begins it (I13). Raises what
        `take` raises.
        """
        before, now_ms = self._metadata.catalog.offset, await self._now_ms()
        name, begins = name_at(now_ms), False

        def begin(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
            nonlocal begins
            begins = is_due(catalog, schedule, now_ms)
            if not begins:
                return []
            until_ms = now_ms + keep_ms_of(catalog, schedule, now_ms)
            return [(key_of(name), encode(begun(catalog, name, until_ms, b"", now_ms, automatic=True)))]

        await self._controller.put_rules(begin, PINS)
        return await self._finish(cut_in(self._metadata.catalog, name), before) if begins else None

    async def _finish(self, record: fmt.CutRecord, before: int) -> fmt.CutRecord:
        """Take a cut that has begun, or return it if it is taken. `before`: the catalog's offset when the call came."""
        name = record.name
        if record.state == fmt.TAKEN:
            return record
        if record.id < before or record.id in self._controller.taking:  # of an earlier call, which may still go on
            raise Unavailable(f"cut {name!r} is being taken by an earlier call; retry", retry_after_ms=500)
        self._controller.taking.add(record.id)
        try:
            return await self._fix(record)
        except BaseException as error:
            await self._abandon(record, str(error) or type(error).__name__)
            raise
        finally:
            self._controller.taking.discard(record.id)
            self._controller.wake()

    async def _now_ms(self) -> int:
        return max(self._compaction.sources.now_ms(), await self._compaction.store.store_time_ms())

    async def _fix(self, record: fmt.CutRecord) -> fmt.CutRecord:
        bundles = list(range(self._metadata.catalog.bundles(self._compaction.cluster)))
        bases = await self._pin(record.id, bundles)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                places = await self._place_all(record.id, bundles)
                break
            except Broken as error:
                log.info("attempt to take a cut failed", cut=record.name, attempt=attempt, error=str(error))
                if attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(ATTEMPT_PAUSE_S)
            finally:
                await self._release(record.id, bundles)
        cut = fmt.Cut(id=record.id, put_id=self._compaction.sources.new_id(), name=record.name)
        cut.created_ms = await self._now_ms()
        for bundle in bundles:
            placed = cut.bundles.add(bundle=bundle, base=bases[bundle], slot=places.slots[bundle])
            for each in places.versions[bundle]:
                placed.partitions.add(topic_id=each.topic_id, partition=each.partition, version=each.version)
        await put_cut(self._compaction.store, cut, self._compaction.sources)

        def fix(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
            return [(key_of(record.name), encode(taken(catalog, record.name, record.id, cut.created_ms)))]

        await self._controller.put_rules(fix, PINS)
        return cut_in(self._metadata.catalog, record.name)

    async def _abandon(self, record: fmt.CutRecord, reason: str) -> None:
        def decide(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
            after = abandoned(catalog, record.id, reason)
            return [] if after is None else [(key_of(record.name), encode(after))]

        try:
            await self._controller.put_rules(decide)
        except LedgerMQError as error:  # the next controller does it
            log.info("cut not abandoned yet", cut=record.name, error=str(error))

    async def _pin(self, cut: int, bundles: Sequence[int]) -> dict[int, int]:
        """Have each owner pin a checkpoint of its bundle; return their numbers: the bases."""
        answers = await asyncio.gather(*(self._step(cut, bundle, pb.CUT_PIN) for bundle in bundles))
        return {bundle: answer.base for bundle, answer in zip(bundles, answers, strict=True)}

    async def _place_all(self, cut: int, bundles: Sequence[int]) -> Places:
        places = Places()
        await self._all(cut, bundles, pb.CUT_HOLD, places)
        await self._all(cut, [bundle for bundle in bundles if bundle != keys.METADATA_BUNDLE], pb.CUT_PLACE, places)
        await self._all(cut, [keys.METADATA_BUNDLE], pb.CUT_PLACE, places)
        await self._all(cut, bundles, pb.CUT_CONFIRM, places)
        return places

    async def _all(self, cut: int, bundles: Sequence[int], step: pb.CutStep, places: Places) -> None:
        answers = await asyncio.gather(*(self._step(cut, bundle, step) for bundle in bundles))
        for bundle, answer in zip(bundles, answers, strict=True):
            if places.epochs.setdefault(bundle, answer.epoch) != answer.epoch:
                raise Broken(f"bundle {bundle} got another owner while the cut was taken", retry_after_ms=500)
            if not answer.ok:
                what = "has transactions that do not complete" if step == pb.CUT_HOLD else "has ended its hold"
                raise Broken(f"bundle {bundle} {what}; take the cut again", retry_after_ms=500)
            if step in (pb.CUT_HOLD, pb.CUT_CONFIRM) and places.holds.setdefault(bundle, answer.hold) != answer.hold:
                raise Broken(f"bundle {bundle} has ended its hold, and begun another one", retry_after_ms=500)
            if step == pb.CUT_PLACE:
                places.slots[bundle] = answer.slot
                places.versions[bundle] = list(answer.versions)

    async def _step(self, cut: int, bundle: int, step: pb.CutStep) -> pb.HoldForCutResponse:
        request = pb.HoldForCutRequest(bundle=bundle, cut=cut, step=step)
        try:
            return await self._calls.at(bundle, lambda broker: broker.hold_for_cut(request))
        except ResourceExhausted:  # the bound of pins, among others
            raise
        except LedgerMQError as error:
            raise Broken(
                f"the owner of bundle {bundle} cannot take part in the cut: {error.message}", retry_after_ms=1000
            ) from error

    async def _release(self, cut: int, bundles: Sequence[int]) -> None:
        steps = (self._step(cut, bundle, pb.CUT_RELEASE) for bundle in bundles)
        await asyncio.gather(*steps, return_exceptions=True)  # a hold ends by itself, too
