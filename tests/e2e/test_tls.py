"""TLS between real clients and real brokers: what works, and as whom."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import pytest

import ledgermq
from ledgermq import Tls, errors
from ledgermq_spark.sink.cluster import opened
from ledgermq_spark.sink.options import parse_options as sink_options
from ledgermq_spark.source.data_source import LedgerMQDataSource
from tests.certificates import Authority
from tests.e2e.serving_tls import SLOW_S, authority_below, refusal, round_trip, serving, serving_tls, until
from tests.waiting import until_two_own

authority = pytest.fixture(authority_below)


async def test_records_go_to_and_fro_by_tls(authority: Authority, tmp_path: Path) -> None:
    async with (
        serving_tls(authority, tmp_path) as node,
        ledgermq.connect(node.address, tls=authority.tls(), timeout_s=SLOW_S) as client,
    ):
        await round_trip(client)


async def test_all_brokers_share_a_certificate_without_their_addresses(authority: Authority, tmp_path: Path) -> None:
    """`tls_server_name`, for clients and between brokers: the name is checked, and only the name."""
    shared = authority.issue("shared", "brokers.example")
    quick = {"heartbeat_interval_ms": 200, "holding_ms": 200}
    settings = {**shared.settings(), "tls_ca_file": str(authority.ca), "tls_server_name": "brokers.example"}
    tls = Tls(ca=authority.ca, server_name="brokers.example")
    async with (
        serving(tmp_path / "root", **settings, **quick) as first,
        serving(tmp_path / "root", **settings, **quick) as second,
        ledgermq.connect(first.address, tls=tls, timeout_s=SLOW_S) as one,
        ledgermq.connect(second.address, tls=tls, timeout_s=SLOW_S) as other,
    ):
        await one.create_topic("by-one", 4)
        await other.create_topic("by-other", 4)
        await until_two_own(other)
        await round_trip(one, "by-other")
        assert "is not made out for '127.0.0.1'" in await refusal(first.address, authority.tls())
        wrong = Tls(ca=authority.ca, server_name="brokers.example.org")
        assert "is not made out for 'brokers.example.org'" in await refusal(first.address, wrong)
        stranger = Authority(tmp_path, "stranger")
        assert "is not signed by" in await refusal(first.address, Tls(ca=stranger.ca, server_name="brokers.example"))


async def test_brokers_reach_each_other_by_tls_and_show_their_certificates(
    authority: Authority, tmp_path: Path
) -> None:
    """`tls_ca_file`, `tls_client_auth`, `tls_client_ca_file`: a change at the broker that is not the
    controller is forwarded, and each owns a part of the partitions.
    """
    ca = str(authority.ca)
    settings = {"tls_ca_file": ca, "tls_client_ca_file": ca, "tls_client_auth": "required"}
    quick = {"heartbeat_interval_ms": 200, "holding_ms": 200}
    program = authority.issue("program", "program.example")
    async with (
        serving_tls(authority, tmp_path, **settings, **quick) as first,
        serving_tls(authority, tmp_path, **settings, **quick) as second,
        ledgermq.connect(first.address, tls=authority.tls(program), timeout_s=SLOW_S) as one,
        ledgermq.connect(second.address, tls=authority.tls(program), timeout_s=SLOW_S) as other,
    ):
        await one.create_topic("by-one", 4)
        await other.create_topic("by-other", 4)
        await until_two_own(other)
        await round_trip(one, "by-other")
        await round_trip(other, "by-one")


async def test_tls_between_brokers_is_not_that_of_the_caller(authority: Authority, tmp_path: Path) -> None:
    """A broker that does not trust the controller, whichever that is, is unavailable to its client, and says
    why.
    """
    stranger = Authority(tmp_path, "other")
    troubles: list[errors.LedgerMQError] = []

    def note(trouble: errors.LedgerMQError | None) -> None:
        troubles.extend([] if trouble is None else [trouble])

    def explained() -> list[errors.LedgerMQError]:
        return [trouble for trouble in troubles if "is not signed by an authority that" in trouble.message]

    async def create(client: ledgermq.Client, name: str) -> None:
        for number in itertools.count():
            await client.create_topic(f"{name}-{number}", 1)

    async with (
        serving_tls(authority, tmp_path, tls_ca_file=str(stranger.ca)) as first,
        serving_tls(authority, tmp_path, tls_ca_file=str(stranger.ca)) as second,
        ledgermq.connect(first.address, tls=authority.tls(), timeout_s=2 * SLOW_S, on_trouble=note) as one,
        ledgermq.connect(second.address, tls=authority.tls(), timeout_s=2 * SLOW_S, on_trouble=note) as other,
    ):
        creating = [asyncio.create_task(create(*each)) for each in ((one, "one"), (other, "other"))]
        await until(lambda: bool(explained()))
        for task in creating:
            task.cancel()
        await asyncio.wait(creating)
    assert {type(trouble) for trouble in explained()} == {errors.Unavailable}


async def test_a_call_shows_the_names_in_the_client_s_certificate(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What identities are made of: `context.auth_context()` of a call."""
    from ledgermq_broker.ports import grpc_server

    seen: list[dict[str, list[bytes]]] = []
    real = grpc_server.certified_names

    def seeing(context: grpc.aio.ServicerContext[bytes, bytes]) -> list[str]:
        seen.append(dict(context.auth_context()))
        return real(context)

    monkeypatch.setattr(grpc_server, "certified_names", seeing)
    settings = {"tls_client_ca_file": str(authority.ca), "tls_client_auth": "required"}
    program = authority.issue("program", "billing.example")
    async with (
        serving_tls(authority, tmp_path, **settings) as node,
        ledgermq.connect(node.address, tls=authority.tls(program), timeout_s=SLOW_S) as client,
    ):
        await client.describe_cluster()
    assert seen[-1]["x509_subject_alternative_name"] == [b"billing.example"]


# -- Spark: what its driver and executors call


async def test_the_spark_sink_connects_by_tls(authority: Authority, tmp_path: Path) -> None:
    """Options tlsCaFile, tlsCertFile, tlsKeyFile, tlsServerName."""
    settings = {"tls_client_ca_file": str(authority.ca), "tls_client_auth": "required"}
    program = authority.issue("program")
    async with serving_tls(authority, tmp_path, **settings) as node:
        files = {"tlsCaFile": authority.ca, "tlsCertFile": program.cert, "tlsKeyFile": program.key}
        given = {"servers": node.address, **{name: str(path) for name, path in files.items()}}
        async with opened(sink_options(given, streaming=False)) as place:
            await round_trip(place.client)
        with pytest.raises(errors.TlsFailed, match=r"not made out for 'other\.example'"):
            async with opened(sink_options({**given, "tlsServerName": "other.example"}, streaming=False)):
                pass
        with pytest.raises(errors.TlsFailed, match="asks for a certificate"):
            async with opened(sink_options({"servers": node.address, "tlsCaFile": str(authority.ca)}, streaming=False)):
                pass
        with pytest.raises(errors.TlsFailed, match="accepts TLS only"):
            async with opened(sink_options({"servers": node.address, "tls": "false"}, streaming=False)):
                pass
        with pytest.raises(errors.InvalidConfig, match="tls=false takes no files"):
            sink_options({"servers": node.address, "tls": "false", "tlsCaFile": "/ca.pem"}, streaming=False)


async def test_the_spark_source_asks_brokers_by_tls(authority: Authority, tmp_path: Path) -> None:
    """Options tlsCaFile, tlsCertFile, tlsKeyFile, tlsServerName; `servers` tell the root."""
    settings = {"tls_client_ca_file": str(authority.ca), "tls_client_auth": "required"}
    program = authority.issue("program")
    async with (
        serving_tls(authority, tmp_path, **settings) as node,
        ledgermq.connect(node.address, tls=authority.tls(program), timeout_s=SLOW_S) as client,
    ):
        await round_trip(client)
        files = {"tlsCaFile": authority.ca, "tlsCertFile": program.cert, "tlsKeyFile": program.key}
        given = {"servers": node.address, "topic": "orders", **{name: str(path) for name, path in files.items()}}

        def read(options: dict[str, str]) -> int:
            source = LedgerMQDataSource(options)
            reader = source.reader(source.schema())
            return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

        assert await asyncio.to_thread(read, given) == 20
        with pytest.raises(errors.TlsFailed, match=r"not made out for 'other\.example'"):
            await asyncio.to_thread(read, {**given, "tlsServerName": "other.example"})
        with pytest.raises(errors.TlsFailed, match="accepts TLS only"):
            await asyncio.to_thread(read, {"servers": node.address, "topic": "orders", "tls": "false"})
