"""Where a request comes from, and what calls of a gateway say of it."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.protocol.naming.client_ids import CLIENT_ADDRESS, CLIENT_REQUEST, DELEGATE
from ledgermq_gateway.cluster.origins import Proxies, calls_for, said_by

PROXIES = Proxies(["10.0.0.0/8", "fd00::/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),  # no proxy: it may write what it likes
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),  # the first one was sent by the client
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),  # two proxies, two headers
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # all are proxies: the first one
        ("10.0.0.1", ["198.51.100.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::1%eth0", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_a_proxy_is_believed_about_its_client(peer: str, forwarded: list[str], expected: str) -> None:
    assert PROXIES.client_of(peer, forwarded) == expected


async def test_what_a_request_says_ends_with_it() -> None:
    """A task that it started, and that goes on, says nothing more; another request says its own."""
    said, let_go = said_by(lambda broker: f"Bearer of {broker}"), asyncio.Event()
    found: list[object] = []

    async def goes_on() -> None:
        found.append(dict(said("b:1")))
        await let_go.wait()
        found.append(dict(said("b:1")))

    async def request(address: str, number: str) -> asyncio.Task[None]:
        end = calls_for(address, number)
        task = asyncio.create_task(goes_on())
        await asyncio.sleep(0)
        end()
        return task

    first = await asyncio.create_task(request("192.0.2.7", "1"))
    second = await asyncio.create_task(request("192.0.2.8", "2"))
    let_go.set()
    await asyncio.gather(first, second)
    one = {CLIENT_ADDRESS: "192.0.2.7", CLIENT_REQUEST: "1", DELEGATE: "Bearer of b:1"}
    other = {CLIENT_ADDRESS: "192.0.2.8", CLIENT_REQUEST: "2", DELEGATE: "Bearer of b:1"}
    assert found == [one, other, {}, {}]


async def test_the_gateway_s_own_token_goes_nowhere_without_an_address() -> None:
    said = said_by(lambda broker: "Bearer secret")
    assert said("b:1") == ()
    calls_for("", "1")
    assert said("b:1") == ()
    calls_for("192.0.2.7", "1")
    assert said_by(None)("b:1") == ((CLIENT_ADDRESS, "192.0.2.7"), (CLIENT_REQUEST, "1"))
