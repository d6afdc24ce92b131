"""Finds what of a root may be removed now. Changes nothing; of a root under way the answer is
right, though not complete.

Of each bundle LIST first, then read the plans, then the newest checkpoint: what is listed and named
by a plan that is finished, below a trim slot that never goes back, stays removable for ever. What
nothing refers to is told by `ledger.garbage.gc`, which lists first too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from ledger import keys
from ledger.cluster import BUNDLES_AT_ONCE, ClusterSettings
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.fsck.names import check_names
from ledger.fsck.problem import Problems
from ledger.garbage.delete import expired_files, finished_long_ago
from ledger.garbage.gc import find_garbage
from ledger.garbage.removable import Found, Kind, Removable, Waiting
from ledger.garbage.staged_rows import useless_staged_rows
from ledger.log.checkpoint import newest_checkpoint
from ledger.log.numbered import list_numbered
from ledger.log.plan_chain import read_plan
from ledger.object_store.contract import FENCES, ObjectInfo, ObjectMissing, ObjectStore
from ledger.topics.catalog import Catalog
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.tasks import all_of

HEARTBEAT_AGE_MS = 60 * 60 * 1000
"""As brokers have it: who was silent for so long is no member any more."""


async def find_removable(store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, grace_ms: int) -> Found:
    """`grace_ms`: what is younger stays, by the store's clock. Parquet files stay `parquet_min_age`
    in any case.

    Where a bundle, or a kind, cannot be searched the rest is: `Found.failures`. Raises the store's
    errors.
    """
    return await _Search(store, cluster, catalog, grace_ms, await store.store_time_ms()).run()


def of_bundle(bundle: int) -> str:
    """Where a failure is that concerns one bundle."""
    return f"bundle {bundle}"


@dataclass(slots=True)
class _Listed:
    """Of one bundle, before anything was read."""

    segments: dict[int, ObjectInfo]
    plans: dict[int, ObjectInfo]
    checkpoints: dict[int, ObjectInfo]
    snapshots: dict[int, ObjectInfo]

    @classmethod
    async def take(cls, store: ObjectStore, bundle: int) -> _Listed:
        folders = (keys.segments(bundle), keys.compactions(bundle), keys.checkpoints(bundle), keys.snapshots(bundle))
        return cls(*[{number: info async for number, info in list_numbered(store, folder)} for folder in folders])


class _Search:
    def __init__(
        self, store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, grace_ms: int, now_ms: int
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._catalog = catalog
        self._grace_ms = grace_ms
        self._now_ms = now_ms
        self._found = Found()

    async def run(self) -> Found:
        bundles = range(self._cluster.bundles)
        await all_of(
            (self._tried(of_bundle(bundle), partial(self._of_bundle, bundle)) for bundle in bundles), BUNDLES_AT_ONCE
        )
        self._found.removable.sort(key=lambda each: each.key)
        await self._tried("garbage", self._garbage)
        await self._tried("fences", self._fences)
        await self._tried("heartbeats", self._heartbeats)
        await self._tried("removed topics", self._of_removed_topics)
        await self._tried("staged rows", self._staged_rows)
        await self._tried("names", self._foreign)
        return self._found

    async def _tried(self, where: str, search: Callable[[], Awaitable[None]]) -> None:
        try:
            await search()
        except LedgerMQError as error:
            self._found.failures.setdefault(where, error)

    async def _of_bundle(self, bundle: int) -> None:
        listed = await _Listed.take(self._store, bundle)
        plans = [await read_plan(self._store, bundle, number) for number in listed.plans]
        checkpoint = await newest_checkpoint(self._store, bundle)
        self._segments_and_plans(listed, [plan for plan in plans if plan is not None], checkpoint)
        self._replaced(listed, checkpoint)
        try:
            await self._expired(checkpoint)
        except ObjectMissing:  # others delete the same files: what they leave is found the next time
            if (await newest_checkpoint(self._store, bundle)).number == checkpoint.number:
                raise

    def _add(self, kind: Kind, info: ObjectInfo, why: str, age_ms: int | None = None) -> bool:
        """False: it is too young."""
        free_ms = info.modified_ms + max(self._grace_ms, age_ms or 0)
        if self._now_ms < free_ms:
            self._found.waiting.append(Waiting(kind, info.key, info.size, free_ms))
            return False
        self._found.removable.append(Removable(kind, info.key, info.size, info.modified_ms, why))
        return True

    def _segments_and_plans(self, listed: _Listed, plans: list[fmt.CompactionPlan], checkpoint: fmt.Checkpoint) -> None:
        named: set[int] = set()
        for plan in plans:
            slots = {slot.slot for slot in plan.slots}
            named |= slots
            if plan.number > checkpoint.finished_plan:
                continue
            there = [slot for slot in sorted(slots) if slot < checkpoint.trim_slot and slot in listed.segments]
            why = f"plan {plan.number} has taken its records to Parquet"
            old = [self._add(Kind.SEGMENT, listed.segments[slot], why) for slot in there]
            if all(old) and all(slot < checkpoint.trim_slot for slot in slots):
                self._add(Kind.PLAN, listed.plans[plan.number], "finished, and nothing of it is left")
        self._found.fences_kept += sum(slot < checkpoint.trim_slot and slot not in named for slot in listed.segments)

    def _replaced(self, listed: _Listed, checkpoint: fmt.Checkpoint) -> None:
        for number, info in listed.checkpoints.items():
            if number < checkpoint.number:
                self._add(Kind.CHECKPOINT, info, f"checkpoint {checkpoint.number} has replaced it")
        for number, info in listed.snapshots.items():
            if number < checkpoint.snapshot_plan:
                self._add(Kind.SNAPSHOT, info, f"snapshot {checkpoint.snapshot_plan} is in force")

    async def _expired(self, checkpoint: fmt.Checkpoint) -> None:
        if not any(part.parquet_start < min(part.log_start, part.parquet_end) for part in checkpoint.partitions):
            return
        age_ms = max(self._cluster.parquet_min_age_ms, self._grace_ms)
        old_enough = await finished_long_ago(self._store, checkpoint.bundle, age_ms)
        async for topic, file, archives in expired_files(self._store, checkpoint, self._catalog):
            try:
                info = await self._store.head(file.key)
            except ObjectMissing:
                continue
            if file.plan > old_enough:
                free_ms = max(self._now_ms, info.modified_ms + age_ms)
                self._found.waiting.append(Waiting(Kind.PARQUET, info.key, info.size, free_ms))
            elif self._add(
                Kind.PARQUET,
                info,
                f"below the log start of {topic.name}" + (", goes to the archive" if archives else ""),
            ):
                self._found.archived += archives

    async def _garbage(self) -> None:
        garbage = await find_garbage(self._store, self._cluster)
        for bundle, error in garbage.failures.items():
            self._found.failures.setdefault(of_bundle(bundle), error)
        for (_, plan), found in garbage.parquet.items():
            for key in found:
                self._add(
                    Kind.PARQUET,
                    garbage.infos[key],
                    f"nothing refers to it since plan {plan}",
                    self._cluster.parquet_min_age_ms,
                )
        known = {each.key for each in self._found.removable}
        for key in garbage.records:
            kind = Kind.SNAPSHOT if "/snapshots/" in key else Kind.PAGE
            if key not in known:
                self._add(kind, garbage.infos[key], "nothing refers to it")

    async def _fences(self) -> None:
        by_bundle: dict[int, list[tuple[str, int]]] = {}
        for name in await self._store.list_fences():
            fence = keys.parse_fence(name)
            if fence is not None and fence.bundle < self._cluster.bundles:
                by_bundle.setdefault(fence.bundle, []).append((name, fence.plan))
        for bundle, fences in by_bundle.items():
            await self._tried(of_bundle(bundle), partial(self._fences_of, bundle, fences))

    async def _fences_of(self, bundle: int, fences: list[tuple[str, int]]) -> None:
        finished = (await newest_checkpoint(self._store, bundle)).finished_plan
        for name, plan in fences:
            if plan <= finished:
                why = f"temporary files of plan {plan}, which is finished"
                self._found.removable.append(Removable(Kind.FENCE, f"{FENCES}{name}", 0, 0, why))

    async def _heartbeats(self) -> None:
        async for info in self._store.list(keys.BROKERS):
            if (
                broker := keys.parse_broker(info.key)
            ) is not None and self._now_ms - info.modified_ms >= HEARTBEAT_AGE_MS:
                self._add(Kind.HEARTBEAT, info, f"broker {broker} is gone")

    async def _of_removed_topics(self) -> None:
        known = {each.key for each in self._found.removable}
        async for info in self._store.list(keys.KEYED):
            if (keyed := keys.parse_keyed(info.key)) is not None and self._catalog.is_removed(
                keyed.place.topic_id, self._catalog.offset
            ):
                self._add(Kind.KEYED, info, f"topic id {keyed.place.topic_id} is deleted")
        for topic in self._catalog.topics_by_name.values():
            if not topic.removed:
                continue
            async for info in self._store.list(keys.parquet_topic(topic.name)):
                name = keys.parse_parquet(info.key)
                if name is not None and name.topic_id == topic.id and info.key not in known:
                    self._add(Kind.PARQUET, info, f"topic {topic.name} is deleted")

    async def _staged_rows(self) -> None:
        async for info, why, age_ms in useless_staged_rows(self._store):
            self._add(Kind.STAGED, info, why, age_ms)

    async def _foreign(self) -> None:
        problems = Problems()
        await check_names(self._store, self._cluster.bundles, problems)
        self._found.foreign += sorted({problem.object_key for problem in problems.all})
