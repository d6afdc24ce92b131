"""Puts a broker's `Groups` together."""

from __future__ import annotations

from collections.abc import Callable

from ledger.root.two_clocks import TwoClocks
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from offsets.coordinator import GroupCoordinator
from offsets.limits import GroupLimits
from stateless_broker.at_controller import AtController
from stateless_broker.controller import Controller
from stateless_broker.groups.ends import PartitionEnds
from stateless_broker.groups.groups import Groups
from stateless_broker.groups.offsets_topic import OffsetsTopic
from stateless_broker.groups.term import TermParts
from stateless_broker.groups.topics_view import CatalogView
from stateless_broker.metadata import Metadata
from stateless_broker.ownership import Ownership
from stateless_broker.settings import BrokerSettings


def open_groups(
    address: str,
    settings: BrokerSettings,
    ownership: Ownership,
    metadata: Metadata,
    controller: Controller,
    at_controller: AtController,
    sources: Sources,
    clocks: TwoClocks,
    broker: Callable[[str], BrokerApi],
    rack_of: Callable[[int], str],
) -> Groups:
    """`broker(address)`: the broker there, this one included. `rack_of(bundle)`: the rack of its
    owner, "" where it has none.
    """
    limits = GroupLimits(
        members_max=settings.group_members_max,
        session_timeout_ms=settings.group_session_timeout_ms,
        retention_ms=settings.offsets_retention_ms,
    )

    def asked(bundle: int, named: str) -> tuple[str, BrokerApi]:
        whom = named or ownership.address_of(bundle) or address
        return whom, broker(whom)

    parts = TermParts(
        core=lambda: GroupCoordinator(limits, CatalogView(lambda: metadata.catalog, rack_of)),
        ends=PartitionEnds(lambda: metadata.catalog, asked),
        sources=sources,
        clocks=clocks,
        damaged_retry_s=lambda: ownership.times.damaged_retry_s,
    )
    groups = Groups(address, OffsetsTopic(metadata, controller, at_controller), ownership, parts)
    metadata.on_change = groups.catalog_changed
    return groups
