"""Register every named bug; importing this module does it."""

from __future__ import annotations

from tests.simulation import (
    mutants_of_access,
    mutants_of_append_times,
    mutants_of_backlogs,
    mutants_of_bundles,
    mutants_of_checkpoints,
    mutants_of_cluster,
    mutants_of_copies,
    mutants_of_expiry,
    mutants_of_filters,
    mutants_of_groups,
    mutants_of_half_messages,
    mutants_of_idempotence,
    mutants_of_ids,
    mutants_of_keyed,
    mutants_of_late_puts,
    mutants_of_ledger,
    mutants_of_moves,
    mutants_of_queues,
    mutants_of_refusals,
    mutants_of_retention,
    mutants_of_retries,
    mutants_of_rounds,
    mutants_of_sinks,
    mutants_of_timed_transactions,
    mutants_of_timers,
    mutants_of_transactions,
)
from tests.simulation.mutants import MUTANTS

__all__ = ["MUTANTS"]

_LOADED = (
    mutants_of_access.LOADED,
    mutants_of_append_times.LOADED,
    mutants_of_backlogs.LOADED,
    mutants_of_bundles.LOADED,
    mutants_of_checkpoints.LOADED,
    mutants_of_cluster.LOADED,
    mutants_of_copies.LOADED,
    mutants_of_expiry.LOADED,
    mutants_of_filters.LOADED,
    mutants_of_groups.LOADED,
    mutants_of_half_messages.LOADED,
    mutants_of_idempotence.LOADED,
    mutants_of_ids.LOADED,
    mutants_of_late_puts.LOADED,
    mutants_of_keyed.LOADED,
    mutants_of_ledger.LOADED,
    mutants_of_moves.LOADED,
    mutants_of_queues.LOADED,
    mutants_of_refusals.LOADED,
    mutants_of_retention.LOADED,
    mutants_of_retries.LOADED,
    mutants_of_rounds.LOADED,
    mutants_of_sinks.LOADED,
    mutants_of_timed_transactions.LOADED,
    mutants_of_timers.LOADED,
    mutants_of_transactions.LOADED,
)
