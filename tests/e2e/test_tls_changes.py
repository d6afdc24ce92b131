"""Certificates and authorities that change while clients and brokers run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from ledgermq import Tls, errors
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.ports.tls import followed_certificates
from ledgermq_broker.settings.processes import load_settings
from tests.certificates import Authority, Pair
from tests.e2e.serving_tls import QUICK_S, SLOW_S, authority_below, looks_quickly, round_trip, serving, until

authority = pytest.fixture(authority_below)
quick_looks = pytest.fixture(looks_quickly)


def replace(file: Path, content: bytes) -> None:
    beside = file.with_suffix(".new")
    beside.write_bytes(content)
    beside.rename(file)


async def test_a_producer_waits_until_tls_works_again(authority: Authority, tmp_path: Path, quick_looks: None) -> None:
    """A record that finds an expired certificate is not lost: it is delivered when that is renewed."""
    troubles: list[errors.LedgerMQError | None] = []
    pair, expired = authority.issue("broker"), authority.issue("expired", expired=True)
    async with serving(tmp_path / "root", **pair.settings()) as node:
        connecting = ledgermq.connect(
            node.address, tls=authority.tls(), timeout_s=SLOW_S, attempt_timeout_s=2, on_trouble=troubles.append
        )
        client = await connecting.__aenter__()
        await client.create_topic("orders", 1)
    port = int(node.address.rpartition(":")[2])
    async with client, client.producer() as producer, serving_on(port, tmp_path / "root", expired):
        sending = producer.send("orders", "late")
        await until(lambda: any(isinstance(trouble, errors.TlsFailed) for trouble in troubles))
        assert not sending.done()
        expired.take(pair)
        assert (await asyncio.wait_for(sending, SLOW_S)).offset == 0
    await connecting.__aexit__(None, None, None)


@asynccontextmanager
async def serving_on(port: int, root: Path, pair: Pair) -> AsyncIterator[Node]:
    chosen = load_settings(None, port=port, reserve_bytes=0, **pair.settings())
    async with (
        followed_certificates(chosen, Sources()) as certificates,
        await Node.start(root.as_uri(), chosen, Sources(), certificates=certificates) as node,
    ):
        yield node


# -- reload


class Load:
    """A client that sends without end, others that come and go, and what they were told of troubles."""

    def __init__(self) -> None:
        self.sent = self.newcomers = 0
        self.done = asyncio.Event()
        self.troubles: list[str] = []

    def note(self, trouble: errors.LedgerMQError | None) -> None:
        self.troubles.extend([] if trouble is None else [str(trouble)])

    async def send(self, client: ledgermq.Client) -> None:
        async with client.producer() as producer:
            while not self.done.is_set():
                await producer.send("orders", str(self.sent))
                self.sent += 1

    async def come(self, address: str, tls: Tls) -> None:
        while not self.done.is_set():
            async with ledgermq.connect(address, tls=tls, timeout_s=SLOW_S, on_trouble=self.note) as another:
                await another.describe_cluster()
            self.newcomers += 1


@pytest.mark.slow
async def test_certificates_and_authorities_change_under_load_and_no_call_fails(
    authority: Authority, tmp_path: Path, quick_looks: None
) -> None:
    """Broker and clients get new certificates of a new authority, twice, while records are sent and
    read. First everybody trusts both authorities, as in a real change.
    """
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(first.ca.read_bytes())
    broker, program = first.issue("broker"), first.issue("program")
    tls = Tls(ca=trusted, cert=program.cert, key=program.key)
    settings = {"tls_client_ca_file": str(trusted), "tls_client_auth": "required", "tls_ca_file": str(trusted)}
    chosen = load_settings(None, port=0, reserve_bytes=0, **broker.settings(), **settings)
    load = Load()
    async with (
        followed_certificates(chosen, Sources()) as certificates,
        await Node.start((tmp_path / "root").as_uri(), chosen, Sources(), certificates=certificates) as node,
        ledgermq.connect(node.address, tls=tls, timeout_s=SLOW_S, on_trouble=load.note) as client,
    ):
        assert certificates is not None

        async def settle(before: object) -> None:
            await until(lambda: certificates.loaded is not before)
            goal = load.sent + 20, load.newcomers + 5
            for _ in range(3):  # the client that stays looks at the files when it makes a call
                await client.describe_cluster()
                await asyncio.sleep(2 * QUICK_S)
            await until(lambda: load.sent >= goal[0] and load.newcomers >= goal[1])

        await client.create_topic("orders", 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.send(client))
            tasks.create_task(load.come(node.address, tls))
            for number, (former, next_one) in enumerate([(first, second), (second, first)]):
                before = certificates.loaded
                replace(trusted, former.ca.read_bytes() + next_one.ca.read_bytes())
                await settle(before)
                before = certificates.loaded
                program.take(next_one.issue(f"program-{number}"))
                broker.take(next_one.issue(f"broker-{number}"))
                await settle(before)
                before = certificates.loaded
                replace(trusted, next_one.ca.read_bytes())
                await settle(before)
            load.done.set()
        assert load.troubles == []
        table = await client.read_arrow("orders")
    assert table.column("value").to_pylist() == [str(number).encode() for number in range(load.sent)]


async def test_files_that_cannot_be_used_change_nothing(
    authority: Authority, tmp_path: Path, quick_looks: None
) -> None:
    pair = authority.issue("broker")
    chosen = load_settings(None, port=0, reserve_bytes=0, **pair.settings())
    async with (
        followed_certificates(chosen, Sources()) as certificates,
        await Node.start((tmp_path / "root").as_uri(), chosen, Sources(), certificates=certificates) as node,
    ):
        assert certificates is not None
        for bad in (b"nonsense", authority.issue("other").cert.read_bytes()):
            pair.cert.write_bytes(bad)
            certificates.trouble = None
            await until(lambda: certificates.trouble is not None)
            async with ledgermq.connect(node.address, tls=authority.tls(), timeout_s=SLOW_S) as client:
                await client.describe_cluster()
        renewed = authority.issue("renewed")
        pair.take(renewed)
        await until(lambda: certificates.trouble is None)
        assert certificates.loaded.cert == renewed.cert.read_bytes()
        async with ledgermq.connect(node.address, tls=authority.tls(), timeout_s=SLOW_S) as client:
            await round_trip(client)
