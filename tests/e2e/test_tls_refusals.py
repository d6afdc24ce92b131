"""What TLS refuses, and what the refused client is told."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

import ledgermq
from tests.certificates import Authority
from tests.e2e.serving_tls import SLOW_S, authority_below, refusal, round_trip, serving, serving_tls

authority = pytest.fixture(authority_below)


async def test_a_client_without_tls_is_told_to_use_it(authority: Authority, tmp_path: Path) -> None:
    async with serving_tls(authority, tmp_path) as node:
        assert f"the broker at {node.address} accepts TLS only: connect with tls=True" in await refusal(
            node.address, False
        )


async def test_a_client_without_tls_and_certificate_too(authority: Authority, tmp_path: Path) -> None:
    settings = {"tls_client_ca_file": str(authority.ca), "tls_client_auth": "required"}
    async with serving_tls(authority, tmp_path, **settings) as node:
        assert "accepts TLS only" in await refusal(node.address, False)


async def test_a_broker_without_tls_is_named(authority: Authority, tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as node:
        assert "does not speak TLS: connect without tls" in await refusal(node.address, authority.tls())


async def test_a_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    async with serving_tls(authority, tmp_path) as node:
        message = await refusal(node.address, other.tls())
        assert f"is not signed by an authority that {other.ca} has: give the file of its authority as ca" in message
        assert "that this machine has" in await refusal(node.address, True)


async def test_an_expired_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("broker", expired=True)
    async with serving(tmp_path / "root", **pair.settings()) as node:
        assert "has expired: renew it there" in await refusal(node.address, authority.tls())


async def test_a_certificate_for_another_name_is_refused(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("broker", "elsewhere.example")
    async with serving(tmp_path / "root", **pair.settings()) as node:
        message = await refusal(node.address, authority.tls())
        assert "is not made out for '127.0.0.1': connect by a name that it has" in message
        by_name = node.address.replace("127.0.0.1", "localhost")
        assert "is not made out for 'localhost'" in await refusal(by_name, authority.tls())


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    authority: Authority, tmp_path: Path
) -> None:
    settings = {"tls_client_ca_file": str(authority.ca), "tls_client_auth": "required"}
    other = Authority(tmp_path, "other").issue("program")
    async with serving_tls(authority, tmp_path, **settings) as node:
        assert "asks for a certificate of the client: give cert and key" in await refusal(node.address, authority.tls())
        assert "it must be valid now, and signed by an authority in the broker's" in await refusal(
            node.address, authority.tls(other)
        )
        expired = authority.issue("old program", expired=True)
        assert f"refuses the certificate {expired.cert}: it must be valid now" in await refusal(
            node.address, authority.tls(expired)
        )
        program = authority.issue("program")
        async with ledgermq.connect(node.address, tls=authority.tls(program), timeout_s=SLOW_S) as client:
            await round_trip(client)


def _handshake(address: str, highest: ssl.TLSVersion, at_all: ssl.TLSVersion = ssl.TLSVersion.TLSv1) -> str | None:
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.minimum_version, context.maximum_version = at_all, highest
    with socket.create_connection((host, int(port)), timeout=10) as line, context.wrap_socket(line) as secure:
        return secure.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_2_is_the_oldest(authority: Authority, tmp_path: Path) -> None:
    async with serving_tls(authority, tmp_path) as node:
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(_handshake, node.address, ssl.TLSVersion.TLSv1_1)
        assert await asyncio.to_thread(_handshake, node.address, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(_handshake, node.address, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
