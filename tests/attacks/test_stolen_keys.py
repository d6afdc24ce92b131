"""A stolen key of the identity provider: what its thief signs ends when the provider no longer publishes the key."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey

import ledgermq
from ledgermq.errors import Unauthenticated, Unauthorized
from ledgermq_broker.access.identity.jwt import FETCH_S_MAX, FETCHED_AGAIN_AFTER_S
from tests.attacks.cluster import SLOW_S
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.e2e.test_identities import Provider

FETCHED_S = 2
"""How often the brokers of this test look at the keys; others do after `FETCHED_AGAIN_AFTER_S`."""
TEN_YEARS_S = 10 * 366 * 86400


@contextmanager
def serving() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


async def until_refused(thief: ledgermq.Client) -> None:
    async with asyncio.timeout(SLOW_S):
        while True:
            try:
                await thief.list_topics()
            except (Unauthenticated, Unauthorized):
                return
            await asyncio.sleep(0.2)


def test_brokers_look_at_the_keys_often_enough_for_a_minute() -> None:
    assert FETCHED_AGAIN_AFTER_S + FETCH_S_MAX < 60


@pytest.mark.slow
async def test_what_a_stolen_key_signed_ends_with_the_key(tmp_path: Path) -> None:
    """A token that a broker had seen counted to its own end: here that of a super principal, for ten years."""
    stolen, new = (ECKey.generate_key("P-256", {"kid": name, "use": "sig"}) for name in ("stolen", "new"))
    with serving() as provider:
        provider.keys = [stolen, new]
        options = (
            *QUICK,
            "--security=rules",
            "--super-principals=jwt:admin",
            f"--jwt-issuer={provider.url}",
            "--jwt-audience=ledgermq",
            f"--constant-keys-fetched-s={FETCHED_S}",
        )
        forged = provider.token(stolen, sub="admin", exp=int(time.time()) + TEN_YEARS_S)
        good = provider.token(new, sub="admin")
        with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), options) as brokers:
            await asyncio.to_thread(brokers.start_all, 2)

            def connect(token: str) -> Any:
                return ledgermq.connect(brokers.addresses, token=token, timeout_s=SLOW_S)

            async with connect(forged) as thief, connect(good) as admin:
                await admin.create_topic("orders", 1)
                assert (await thief.access.test("produce", "orders")).allowed
                async with thief.consumer("orders") as stream:
                    await stream.fetch(1, timeout=0.1)
                    provider.keys = [new]
                    await until_refused(thief)
                    await asyncio.sleep(2 * FETCHED_S)  # the other broker has looked, too
                    async with admin.producer() as producer:
                        await producer.send("orders", b"secret")
                    try:
                        assert not await stream.fetch(1, timeout=3.0), "a stream of the thief goes on"
                    except (Unauthenticated, Unauthorized):
                        pass
                for _ in range(5):
                    with pytest.raises((Unauthenticated, Unauthorized)):
                        await thief.create_topic("forged", 1)
                assert [topic.name for topic in await admin.list_topics()] == ["orders"]
                assert (await admin.access.test("produce", "orders")).allowed
