"""Brokers that serve by TLS, and what clients of them are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from ledgermq import Tls, errors
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.ports.tls import followed_certificates
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import load_settings
from tests.certificates import Authority

SLOW_S = 60.0
QUICK_S = 0.05


def authority_below(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def looks_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes look at their files many times a second."""
    for module in ("ledgermq_broker.ports.tls", "ledgermq.client.settings.tls"):
        monkeypatch.setattr(f"{module}.LOOK_S", QUICK_S)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SLOW_S):
        while not true():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(root: Path | str, **settings: object) -> AsyncIterator[Node]:
    """A broker in this process that is reached by its port."""
    url = root if isinstance(root, str) else root.as_uri()
    chosen: BrokerSettings = load_settings(None, port=0, bundles=3, reserve_bytes=0, **settings)
    async with (
        followed_certificates(chosen, Sources()) as certificates,
        await Node.start(url, chosen, Sources(), certificates=certificates) as node,
    ):
        yield node


@asynccontextmanager
async def serving_tls(authority: Authority, tmp_path: Path, **settings: object) -> AsyncIterator[Node]:
    async with serving(tmp_path / "root", **authority.issue("broker").settings(), **settings) as node:
        yield node


async def refusal(address: str, tls: Tls | bool) -> str:
    """The text of the typed error of a first call, which comes at once, and not at the time limit."""
    async with ledgermq.connect(address, tls=tls, timeout_s=SLOW_S) as client:
        async with asyncio.timeout(SLOW_S / 2):
            with pytest.raises(errors.TlsFailed) as refused:
                await client.describe_cluster()
    return refused.value.message


async def round_trip(client: ledgermq.Client, topic: str = "orders") -> None:
    await client.create_topic(topic, 2, if_not_exists=True)
    async with client.producer() as producer:
        await asyncio.gather(*(producer.send(topic, str(i), key=str(i)) for i in range(20)))
    table = await client.read_arrow(topic)
    assert sorted(int(value) for value in table.column("value").to_pylist()) == list(range(20))
