"""A share of `make mutants` for every test run: what fell at once must go on falling, or the
simulation has gone blind.

Seeds move with every change of the product, so each of these is one that many seeds catch, and a
few are tried.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.simulation.all_mutants import MUTANTS
from tests.simulation.levels import LEVELS
from tests.simulation.mutants import hunt

SEEDS = range(60)

FALL_AT_ONCE = (
    "acknowledged-before-a-lower-slot",
    "any-sequence-of-an-unknown-producer",
    "archive-after-the-original-is-gone",
    "available-now-ends-while-a-partition-is-away",
    "backlog-measured-once",
    "backlog-never-forgiven",
    "batches-taken-behind-the-seal",
    "checkpoint-of-what-is-not-durable",
    "checkpoint-retried-with-stale-content",
    "claims-deleted",
    "cleaner-drops-a-live-key",
    "commit-of-a-plan-that-was-finished",
    "compaction-by-the-first-number",
    "controller-places-by-the-first-number",
    "copies-handled-before-their-time",
    "copies-never-read",
    "copy-put-before-its-original",
    "decisions-outlive-rules",
    "deleted-by-memory",
    "deliveries-apart-from-the-watermark",
    "eviction-goes-on-below-the-quota",
    "exists-taken-as-lost",
    "exists-taken-as-won",
    "expiry-by-our-clock-alone",
    "fences-left-open",
    "file-without-its-last-record",
    "filter-skips-beyond-its-batch",
    "floors-ignored",
    "flush-without-its-progress",
    "garbage-collection-reads-before-it-lists",
    "half-messages-time-out",
    "heartbeat-that-was-written-again-deleted",
    "held-copies-are-finished",
    "held-backlog-is-evicted",
    "hold-ignored",
    "ids-forgotten-at-a-takeover",
    "ids-not-in-the-checkpoint",
    "late-task-put-lands",
    "last-copy-removed",
    "ledgers-are-not-asked-what-left",
    "link-ignored",
    "living-heartbeat-deleted",
    "loads-are-not-looked-at",
    "log-deleted-above-the-version",
    "memory-of-answers-never-given-back",
    "name-freed-with-files-left",
    "not-taken-back",
    "newest-checkpoint-deleted",
    "new-brokers-judge-before-they-have-read-the-rules",
    "no-second-recovery",
    "offset-committed-without-the-copies",
    "offsets-from-the-checkpoint-only",
    "offsets-of-moving-partitions-forgotten",
    "old-records-stay-beside-new-ones",
    "open-fetch-streams-not-judged",
    "parquet-deleted-in-any-order",
    "plan-believed-although-a-partition-left",
    "own-void-segments-forgotten",
    "recalled-before-it-is-durable",
    "refused-put-acknowledged",
    "producer-is-told-the-time-of-the-answer",
    "promises-are-not-kept",
    "queue-answers-before-it-is-durable",
    "queue-state-dropped-at-a-takeover",
    "queue-window-forgotten",
    "range-read-where-it-was-planned",
    "read-in-the-new-ledger-before-its-files-came",
    "rebalance-gives-one-partition-to-two-members",
    "retention-deletes-one-file-too-many",
    "revoked-tokens-stay-admitted",
    "rules-wait-for-brokers-that-answer",
    "seal-without-what-is-in-flight",
    "seals-not-in-the-checkpoint",
    "segments-put-without-a-condition",
    "sequences-not-looked-at",
    "snapshot-keeps-the-oldest",
    "stamps-by-our-clock-alone",
    "staged-rows-deleted-at-any-age",
    "stale-plan-run",
    "staged-rows-of-an-open-decision-deleted",
    "stream-stops-for-a-move",
    "sweep-takes-strangers-for-garbage",
    "sweep-takes-what-no-plan-names",
    "temporary-folder-removed-before-its-plan-is-finished",
    "uncertain-commit-undone",
    "unresolved-after-the-first-check",
    "unresolved-copies-without-a-session",
    "version-published-before-its-last-file",
    "voids-deleted",
    "waiters-of-a-failed-flush-acknowledged",
    "waiters-of-a-lost-term-forgotten",
    "zombie-commit",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FALL_AT_ONCE)
def test_a_mutant_is_caught(name: str) -> None:
    caught = hunt(MUTANTS[name], LEVELS[MUTANTS[name].level], SEEDS)
    assert caught.seed is not None, caught.misfit or caught.mutant.what


def test_a_late_put_on_s3_is_caught() -> None:
    """Of the seeds of a longer stretch only those in which tasks sleep before they put, on S3."""
    mutant = MUTANTS["url-life-without-end"]
    assert mutant.likely is not None
    seeds = [seed for seed in range(120) if mutant.likely(seed)]
    assert len(seeds) > 12
    assert hunt(mutant, LEVELS[mutant.level], seeds).seed is not None


def test_every_mutant_says_what_is_wrong() -> None:
    assert all(mutant.what and mutant.level in LEVELS for mutant in MUTANTS.values())
    assert len(MUTANTS) >= 30


def _function(found: object) -> Any:
    if isinstance(found, property):
        return found.fget
    return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found


def misfit(real: object, planted: object) -> str:
    """Say why a call of the function `real` would fail at the one planted in its place; empty: it would not.

    Such a call raises TypeError, a *bug*, which does not count as caught, or the run is *stuck*, which proves nothing.
    """
    was, now = _function(real), _function(planted)
    if not callable(was) or not callable(now):
        return "" if not callable(was) or isinstance(real, property) else f"{was} is called, {now} cannot be"
    try:
        taken, offered = inspect.signature(now), inspect.signature(was).parameters.values()
    except ValueError:  # of a builtin
        return ""
    for given in offered, [each for each in offered if each.default is each.empty]:
        places = [each for each in given if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        names = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
        try:
            taken.bind(*places, **names)
        except TypeError as error:
            return f"{inspect.signature(was)} is replaced by {taken}: {error}"
    return ""


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_each_mutant_fits_what_it_replaces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name].apply(monkeypatch)
    for owner, attribute, real in monkeypatch._setattr:
        assert not misfit(real, vars(owner)[attribute]), attribute


def test_a_planted_function_that_takes_less_is_named() -> None:
    def real(place: int, *, within_s: float = 0.0) -> None: ...

    assert "within_s" in misfit(real, lambda place: None)
    assert "too many" in misfit(real, lambda *, within_s: None)
    assert "missing" in misfit(real, lambda place, *, within_s: None)
    assert "cannot be" in misfit(real, None)
    assert not misfit(real, lambda *places, **names: None)
    assert not misfit(property(real), None)
