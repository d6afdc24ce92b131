"""A real S3 server behind a network that cuts connections: what landed without an answer is found
out, and reads go on.
"""

from __future__ import annotations

import asyncio

import pytest

from infra.minio import Minio
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.root.open import open_store
from tests.servers.cutting_proxy import cutting_proxy
from tests.stores.backends import s3_store, seeded_sources

pytestmark = pytest.mark.real


@pytest.mark.parametrize("seed", range(4))
async def test_puts_are_settled_rightly_over_a_network_that_cuts(minio: Minio, minio_root: str, seed: int) -> None:
    async with cutting_proxy(minio.endpoint, seed) as proxy, s3_store(minio_root) as direct:
        root = minio_root.replace(minio.endpoint, proxy.endpoint)
        async with (
            await open_store(root, sources=seeded_sources(seed)) as first,
            await open_store(root, sources=seeded_sources(seed + 1)) as second,
        ):

            async def race(store_number: int, slot: int) -> PutOutcome:
                sources = seeded_sources(1000 * seed + 100 * store_number + slot)
                buffers = [b"x" * sources.random.randrange(1, 300_000), sources.new_id()]
                key = f"ledgers/0001/segments/{slot:020d}"
                outcome = await settle_put(
                    (first, second)[store_number], key, buffers, sources=sources, hedge_after_s=0.05
                )
                stands = await direct.get(key)
                assert outcome is not PutOutcome.UNKNOWN
                assert (outcome is PutOutcome.WON) == (stands == b"".join(buffers))
                return outcome

            for slot in range(8):
                outcomes = await asyncio.gather(race(0, slot), race(1, slot))
                assert sorted(outcome.name for outcome in outcomes) == ["LOST", "WON"]
            assert len([info async for info in first.list("ledgers/")]) == 8
            others = [f"others/{i}" for i in range(8)]
            for key in others:
                await direct.put_if_absent(key, [b"x"])
            await first.delete(others[:1])
            await second.delete(others[1:])
        assert [info async for info in direct.list("others/")] == []
        assert proxy.cuts["answer"] > 0, "nothing was cut: this run proved nothing"
        assert proxy.cuts["request"] > 0
