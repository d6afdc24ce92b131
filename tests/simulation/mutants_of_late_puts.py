"""Bugs in the protection against late puts, which could restore a deleted Parquet file
(docs/design.md, Late puts): fences of files, URLs of S3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import ledgermq_ledger.garbage.ledgers.fences
import ledgermq_ledger.garbage.topics.commit_age
import ledgermq_ledger.garbage.topics.removed
import ledgermq_ledger.parquet.compacting.task
import tests.simulation.s3
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.s3 import store as s3_store
from ledgermq_ledger.parquet.compacting.task import _Run
from tests.simulation.mutants import mutant
from tests.simulation.rounds_plan import LATE_TWICE, SLEEPER_OVER_A_REMOVAL, SLEEPER_WITH_A_WRONG_CLOCK, rounds_plan_of
from tests.simulation.s3 import SimulatedS3

LOADED = True
Patch = pytest.MonkeyPatch


def late_on_s3(seed: int) -> bool:
    """Tasks that sleep before they put, on S3."""
    plan = rounds_plan_of(seed)
    return plan.is_s3 and "parquet" in plan.ambush.shares


def late_on_files(seed: int) -> bool:
    plan = rounds_plan_of(seed)
    return not plan.is_s3 and "parquet" in plan.ambush.shares


@mutant("rounds", likely=late_on_s3)
def url_life_without_end(patch: Patch) -> None:
    """S3: nothing refuses an upload by its age."""
    patch.setattr(tests.simulation.s3, "is_expired", lambda query, now_ms: False)


@mutant("rounds", likely=lambda seed: rounds_plan_of(seed).ambush is LATE_TWICE)
def url_signed_after_the_look(patch: Patch) -> None:
    """S3: first the look whether the plan is open, then the signature."""

    async def take_permission(self: _Run) -> None:
        await ledgermq_ledger.parquet.compacting.task.require_open(self.store, self.plan)
        await _sign(self)

    patch.setattr(_Run, "_take_permission", take_permission)


@mutant("rounds", likely=late_on_s3)
def url_signed_anew_without_a_look(patch: Patch) -> None:
    """S3: a task whose permission has expired signs again and goes on."""
    real = _Run._take_permission

    async def take_permission(self: _Run) -> None:
        if self.permission is None:
            await real(self)
        else:
            await _sign(self)

    patch.setattr(_Run, "_take_permission", take_permission)


async def _sign(run: _Run) -> None:
    files = [file.key for file in run.plan.files]
    run.permission = await run.store.fenced_puts(
        ledgermq_ledger.parquet.compacting.task.fence_of(run.plan), files, run.task.url_life_ms
    )


@mutant("rounds", likely=lambda seed: rounds_plan_of(seed).ambush is SLEEPER_WITH_A_WRONG_CLOCK)
def own_clock_trusted_when_signing(patch: Patch) -> None:
    """S3: no process compares the clock that signs with the store's."""
    patch.setattr(s3_store, "CLOCKS_APART_PARTS", 0)


@mutant("rounds", likely=late_on_s3)
def upload_without_a_bound(patch: Patch) -> None:
    """S3: an upload that began in time may take as long as it likes."""
    real = SimulatedS3.put_presigned

    async def put_presigned(
        self: SimulatedS3, key: str, url: str, buffers: Sequence[Buffer], seconds_max: float
    ) -> None:
        await real(self, key, url, buffers, 20 * seconds_max)

    patch.setattr(SimulatedS3, "put_presigned", put_presigned)


@mutant("rounds", likely=late_on_s3)
def parquet_deleted_at_any_age(patch: Patch) -> None:
    """S3: files are deleted as soon as their plan is finished."""

    async def finished_long_ago(store: ObjectStore, bundle: int, age_ms: int) -> int:
        return (await newest_checkpoint(store, bundle)).finished_plan

    patch.setattr(ledgermq_ledger.garbage.topics.commit_age, "finished_long_ago", finished_long_ago)


@mutant("rounds", likely=late_on_s3)
def commits_noted_as_long_ago(patch: Patch) -> None:
    """S3: the note of when a commit was seen is believed whatever its age."""
    real = ledgermq_ledger.garbage.topics.commit_age.witness_move
    patch.setattr(
        ledgermq_ledger.garbage.topics.commit_age,
        "witness_move",
        lambda plan, seen_ms, age_ms: real(plan, seen_ms - age_ms, age_ms),
    )


@mutant("rounds", likely=lambda seed: rounds_plan_of(seed).ambush is SLEEPER_OVER_A_REMOVAL)
def removed_topics_files_deleted_at_any_age(patch: Patch) -> None:
    """S3: a deleted topic's files go as soon as its barrier is passed."""

    async def late_puts_are_over(self: Any, checkpoint: fmt.Checkpoint, note: fmt.RemovedTopic) -> bool:
        return True

    patch.setattr(ledgermq_ledger.garbage.topics.removed._Removal, "_late_puts_are_over", late_puts_are_over)


@mutant("rounds", likely=late_on_files)
def late_task_put_lands(patch: Patch) -> None:
    """The store does not refuse what comes after the fence was closed."""
    patch.setattr(MemoryStore, "_create_fenced", lambda self, fence, key, buffers: self._create(key, buffers))


@mutant("rounds")
def temporary_folder_removed_before_its_plan_is_finished(patch: Patch) -> None:
    """A process that tidies closes every fence."""

    async def close_finished(store: ObjectStore, bundle: int) -> None:
        for name in await store.list_fences():
            await store.close_fence(name)

    patch.setattr(ledgermq_ledger.garbage.ledgers.fences, "close_finished", close_finished)


@mutant("rounds", likely=late_on_files)
def fence_opened_by_the_task(patch: Patch) -> None:
    """A task that finds no fence makes one."""
    real = _Run._take_permission

    async def take_permission(self: _Run) -> None:
        await self.store.open_fence(ledgermq_ledger.parquet.compacting.task.fence_of(self.plan))
        await _sign(self)

    assert real is not None
    patch.setattr(_Run, "_take_permission", take_permission)


@mutant("rounds", likely=late_on_files)
def fences_left_open(patch: Patch) -> None:
    """Files are deleted before the fence of their plan is closed."""

    async def close_finished(store: ObjectStore, bundle: int) -> None:
        return None

    patch.setattr(ledgermq_ledger.garbage.ledgers.fences, "close_finished", close_finished)
