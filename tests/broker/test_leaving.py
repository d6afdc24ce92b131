"""A broker leaves while terms of its bundles end by themselves; in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ledgermq.errors import NotOwner
from ledgermq_ledger.log.writing.writer import claim
from tests.broker.cluster import cluster_of
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.ledgers import ledger_of

STEPS = 40
"""Turns of the event loop that pass between the first end of a term and the second, at most."""


@virtual
async def test_terms_that_end_while_a_broker_hands_over_do_not_stop_it() -> None:
    """One is being dropped when the broker begins to leave, another one ends a few turns of the
    loop later.
    """

    async def leave_after(steps: int) -> None:
        async with cluster_of("a:1") as cluster:
            await cluster.settled()
            terms = cluster.brokers["a:1"].ownership.terms
            first, second = (terms.opened[bundle] for bundle in (1, 2))
            for bundle in (1, 2):
                await claim(ledger_of(cluster.store, bundle, sources=virtual_sources(50)), "rival")

            async def look(turns: int, owner: object) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                with suppress(NotOwner):
                    await owner.check_fence()  # type: ignore[attr-defined]

            looks = [asyncio.create_task(look(0, first)), asyncio.create_task(look(steps, second))]
            await first.ended.wait()
            await cluster.stop("a:1")
            await asyncio.gather(*looks, return_exceptions=True)
            assert not terms.opened

    for steps in range(STEPS):
        await leave_after(steps)
