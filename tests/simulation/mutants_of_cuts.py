"""Bugs in cuts: how they are taken, and what pins keep (docs/design.md, Cuts)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from dataclasses import replace

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.committing.decision_hold import DecisionHold
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cuts.automatic import AutomaticCuts
from ledgermq_broker.cuts.taking import Places, Taking
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.transactions.coordinating.term import Coordinating
from ledgermq_broker.transactions.state.coordinating.producers import Identity
from ledgermq_broker.transactions.state.types import Kind
from ledgermq_ledger import cluster, keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts import pins, record
from ledgermq_ledger.cuts.automatic import Schedule
from ledgermq_ledger.cuts.pinned import Pinned
from ledgermq_ledger.cuts.reading import left_out, replica, restore
from ledgermq_ledger.cuts.reading.root import RootAtCut
from ledgermq_ledger.cuts.record import pending_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import cuts as garbage_cuts
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.log.chains import checkpoint as checkpoints
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog
from tests.simulation.automatic_cuts_watch import cuts_by_themselves
from tests.simulation.deleted_with_cuts import deletes_topics
from tests.simulation.drawn_epochs import takes_over
from tests.simulation.mutants import mutant
from tests.simulation.replica_watch import is_replicated
from tests.simulation.restore_watch import leaves_out

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cuts")
def cut_placed_before_all_are_quiet(patch: Patch) -> None:
    """Each bundle is placed as soon as it is quiet, and goes on."""

    async def place_all(self: Taking, cut: int, bundles: Sequence[int]) -> Places:
        places = Places()
        for bundle in bundles:
            for step in (pb.CUT_HOLD, pb.CUT_PLACE, pb.CUT_CONFIRM, pb.CUT_RELEASE):
                await self._all(cut, [bundle], step, places)
        return places

    patch.setattr(Taking, "_place_all", place_all)


@mutant("cuts")
def cut_quiet_without_drain(patch: Patch) -> None:
    """A bundle counts as quiet while decided transactions are not complete."""

    async def drained(self: Coordinating) -> None:
        pass

    patch.setattr(Coordinating, "is_quiet", True)
    patch.setattr(Coordinating, "drained", drained)


@mutant("cuts", takes_over)
def epochs_drawn_while_a_cut_is_taken(patch: Patch) -> None:
    """A transactional id is taken over although decisions are held for a cut."""

    async def init(self: Coordinating, request: pb.InitTransactionsRequest, kind: Kind) -> Identity:
        token = is_init.set(True)
        try:
            return await real(self, request, kind)
        finally:
            is_init.reset(token)

    async def passed(self: DecisionHold) -> None:
        if not is_init.get():
            await wait(self)

    is_init = ContextVar("is_init", default=False)
    real, wait = Coordinating.init, DecisionHold.passed
    patch.setattr(Coordinating, "init", init)
    patch.setattr(DecisionHold, "passed", passed)
    patch.setattr(Coordinating, "_check_drawn", lambda self, transactional_id, before: None)


@mutant("cuts")
def cut_placed_below_the_acknowledged(patch: Patch) -> None:
    """The place is the slot of the base, not the last one that is durable."""

    async def pin(self: BundleOwner, cut_id: int) -> int:
        base = await real(self, cut_id)
        pinned_at[self.bundle, cut_id] = self.durable_slot
        last[self.bundle] = cut_id
        return base

    def durable_slot(self: BundleOwner) -> int:
        self._check_term()
        here = self._writer.durable.slot
        return pinned_at.get((self.bundle, last.get(self.bundle, -1)), here)

    real, pinned_at, last = BundleOwner.pin, dict[tuple[int, int], int](), dict[int, int]()
    patch.setattr(BundleOwner, "pin", pin)
    patch.setattr(BundleOwner, "durable_slot", property(durable_slot))


@mutant("cuts")
def cut_base_deleted(patch: Patch) -> None:
    """Older checkpoints go, bases of cuts too."""
    real = Pinned.keeps

    def keeps(self: Pinned, key: str) -> int | None:
        return None if "/checkpoints/" in key else real(self, key)

    patch.setattr(Pinned, "keeps", keeps)


@mutant("cuts")
def cut_slots_deleted(patch: Patch) -> None:
    """Segments that a cut names go when their records are in Parquet."""
    real = Pinned.keeps

    def keeps(self: Pinned, key: str) -> int | None:
        return None if "/segments/" in key else real(self, key)

    patch.setattr(Pinned, "keeps", keeps)


@mutant("cuts")
def cut_files_not_handed_over(patch: Patch) -> None:
    """Retention deletes Parquet files without a copy for cuts."""
    patch.setattr(Gate, "is_handed_over", lambda self, key: False)


@mutant("cuts")
def cut_held_files_collected(patch: Patch) -> None:
    """Files that were handed over go, whatever pins name them."""
    real = garbage_cuts._unnamed
    patch.setattr(garbage_cuts, "_unnamed", lambda listed, pinned: real(listed, Pinned()))


@mutant("cuts")
def cut_pin_lost_in_a_commit(patch: Patch) -> None:
    """The next checkpoint does not carry the pins of the one before."""
    real = checkpoints.draft_next

    def draft_next(base: fmt.Checkpoint, *rest: object) -> fmt.Checkpoint:
        draft: fmt.Checkpoint = real(base, *rest)  # type: ignore[arg-type]
        del draft.pins[:]
        return draft

    patch.setattr("ledgermq_ledger.log.recovery.draft_next", draft_next)


@mutant("cuts")
def cut_pending_pin_collected(patch: Patch) -> None:
    """The pin of a cut that is being taken goes, as if that were over."""
    real = garbage_cuts.over_in

    def over_in(catalog: Catalog, cut_id: int) -> bool:
        return real(catalog, cut_id) or any(record.id == cut_id for record in pending_in(catalog))

    patch.setattr(garbage_cuts, "over_in", over_in)


@mutant("cuts")
def cut_base_read_before_the_pin(patch: Patch) -> None:
    """The base is the checkpoint before the pin, which collectors let go."""

    async def pin_for_cut(ledger: pins.LedgerRef, cut_id: int, durable: object = None) -> int:
        before = (await pins.newest_checkpoint(ledger.store, ledger.bundle)).number
        base = await real(ledger, cut_id, durable)  # type: ignore[arg-type]
        return before or base

    real = pins.pin_for_cut
    patch.setattr("ledgermq_broker.bundle.owner.pin_for_cut", pin_for_cut)


@mutant("cuts", cuts_by_themselves)
def automatic_cut_due_by_memory(patch: Patch) -> None:
    """Each controller remembers when it took the last one, and does not look what the catalog has."""

    def is_due(catalog: Catalog, schedule: Schedule, now_ms: int) -> bool:
        return now_ms - last.get(id(catalog), 0) >= schedule.every_ms

    def is_due_in_its_turn(catalog: Catalog, schedule: Schedule, now_ms: int) -> bool:
        begins = is_due(catalog, schedule, now_ms)
        if begins:
            last[id(catalog)] = now_ms
        return begins

    last = dict[int, int]()
    patch.setattr("ledgermq_broker.cuts.automatic.is_due", is_due)
    patch.setattr("ledgermq_broker.cuts.taking.is_due", is_due_in_its_turn)


@mutant("cuts", cuts_by_themselves)
def automatic_cuts_end_with_a_failure(patch: Patch) -> None:
    """A cut that fails is the last one of this controller."""

    def note(self: AutomaticCuts, message: str) -> None:
        self._settings = BrokerSettings

    patch.setattr(AutomaticCuts, "_note", note)


@mutant("cuts", cuts_by_themselves)
def automatic_cuts_of_periods_go(patch: Patch) -> None:
    """Each automatic cut is kept for the first time of the setting alone."""
    patch.setattr("ledgermq_broker.cuts.taking.keep_ms_of", lambda catalog, schedule, now_ms: schedule.tiers[0].keep_ms)


@mutant("cuts", cuts_by_themselves)
def automatic_cuts_all_kept(patch: Patch) -> None:
    """Each automatic cut is kept for the longest time."""
    patch.setattr(
        "ledgermq_broker.cuts.taking.keep_ms_of", lambda catalog, schedule, now_ms: schedule.tiers[-1].keep_ms
    )


@mutant("cuts")
def restored_under_the_same_id(patch: Patch) -> None:
    """A restored cluster has the id of the one that it came from."""
    real = restore.restored_from

    def restored_from(source: ClusterSettings, cluster_id: str, now_ms: int) -> ClusterSettings:
        return replace(real(source, cluster_id, now_ms), cluster_id=source.cluster_id)

    patch.setattr(restore, "restored_from", restored_from)


@mutant("cuts")
def restored_files_are_foreign(patch: Patch) -> None:
    """Only files that name the new id count as those of a restored cluster."""
    patch.setattr(ClusterSettings, "wrote", lambda self, cluster_id: cluster_id == self.cluster_id)


@mutant("cuts")
def restored_cluster_file_first(patch: Patch) -> None:
    """`cluster.json` is put before what the cut names, so a restore that died looks like a cluster."""
    real = restore.copy_named

    async def copy_named(at: RootAtCut, target: ObjectStore, without: Collection[int] = ()) -> restore.Copied:
        note = await restore.read_note(target)
        assert note is not None
        await restore.put_same(target, keys.CLUSTER, note.cluster_json.encode())
        return await real(at, target, without)

    patch.setattr(restore, "copy_named", copy_named)


@mutant("cuts")
def restored_root_taken_by_a_broker(patch: Patch) -> None:
    """A broker does not look whether something is being restored into its root."""

    async def refuse(store: ObjectStore, found: ClusterSettings | None) -> None:
        pass

    patch.setattr(cluster, "_refuse_other_restore", refuse)


@mutant("cuts")
def restored_again_over_a_cluster(patch: Patch) -> None:
    """A restore that is repeated copies again, though `cluster.json` is there."""

    async def is_done(target: ObjectStore, note: cluster.RestoreNote) -> bool:
        return False

    patch.setattr(restore, "_is_done", is_done)


@mutant("cuts", deletes_topics)
def deleted_with_the_taken_cuts_alone(patch: Patch) -> None:
    """A topic is deleted together with the cuts that are taken, and not with the one that is being taken."""
    real = record.holding

    def holding(catalog: Catalog, topic_id: int) -> list[fmt.CutRecord]:
        return [each for each in real(catalog, topic_id) if each.state == fmt.TAKEN]

    patch.setattr(record, "holding", holding)


@mutant("cuts", leaves_out)
def copied_without_naming_what_is_left_out(patch: Patch) -> None:
    """The catalog of the copy says that topics are removed, and the checkpoints of its bundles do not."""

    async def bring_into_force(ledger: object, move: object, durable: object = None) -> bool:
        return False

    patch.setattr(left_out, "bring_into_force", bring_into_force)


@mutant("cuts", is_replicated)
def restored_from_a_cut_that_lacks_objects(patch: Patch) -> None:
    """A cut of a replicated root counts as whole when its own object and the bases have come."""

    async def lacking(store: ObjectStore, wanted: Collection[str]) -> list[str]:
        return []

    patch.setattr(replica, "_lacking", lacking)
