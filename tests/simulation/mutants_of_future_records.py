"""Bugs in the bound of timestamps that producers set (rule P11)."""

from __future__ import annotations

import pytest

from ledgermq.client.connection.routing import TopicRoute
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.paths.received_batches import BatchChecks
from tests.simulation.future_watch import clocks_are_wrong, dated_ahead
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("cluster", likely=dated_ahead)
def records_of_the_future_are_stored(patch: Patch) -> None:
    """A broker takes any timestamp, so one record stops retention of its partition for ever."""
    patch.setattr(BatchChecks, "_check_times", lambda self, topic, batch: None)


@mutant("cluster", likely=clocks_are_wrong)
def future_judged_by_the_clock_of_the_broker(patch: Patch) -> None:
    """A broker compares timestamps with the clock of its machine, and not with the store's."""
    patch.setattr(BundleContext, "append_now_us", lambda self: self.sources.now_us())


@mutant("cluster", likely=dated_ahead)
def neighbours_refused_with_a_record_of_the_future(patch: Patch) -> None:
    """A producer puts records that are ahead into a batch with others, which is refused as a whole."""
    patch.setattr(TopicRoute, "timestamp_bounds", None)
