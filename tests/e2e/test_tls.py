"""TLS between real clients and real brokers: what works, what is refused and what the error says."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

import ledgermq
from ledgermq import Tls, errors
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.ports.tls import followed_certificates
from ledgermq_broker.settings.processes import BrokerSettings, load_settings
from ledgermq_spark.sink.cluster import opened
from ledgermq_spark.sink.options import parse_options as sink_options
from ledgermq_spark.source.data_source import LedgerMQDataSource
from tests.certificates import Authority, Pair
from tests.waiting import until_two_own

SLOW_S = 60.0
QUICK_S = 0.05


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes look at their files many times a second."""
    for module in ("ledgermq_broker.ports.tls", "ledgermq.client.settings.tls"):
        monkeypatch.setattr(f"{module}.LOOK_S", QUICK_S)


def replace(file: Path, content: bytes) -> None:
    beside = file.with_suffix(".new")
    beside.write_bytes(content)
    beside.rename(file)


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


async def test_a_call_shows_the_names_in_the_client_s_certificate(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What identities are made of: `context.auth_context()` of a call."""
    from ledgermq_broker.ports import grpc_server

    seen: list[dict[str, list[bytes]]] = []
    real = grpc_server._certified

    def seeing(context: grpc.aio.ServicerContext[bytes, bytes]) -> list[str]:
        seen.append(dict(context.auth_context()))
        return real(context)

    monkeypatch.setattr(grpc_server, "_certified", seeing)
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


# -- reload


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
    sent = newcomers = 0
    done = asyncio.Event()
    troubles: list[str] = []

    def note(trouble: errors.LedgerMQError | None) -> None:
        troubles.extend([] if trouble is None else [str(trouble)])

    async with (
        followed_certificates(chosen, Sources()) as certificates,
        await Node.start((tmp_path / "root").as_uri(), chosen, Sources(), certificates=certificates) as node,
        ledgermq.connect(node.address, tls=tls, timeout_s=SLOW_S, on_trouble=note) as client,
    ):
        assert certificates is not None

        async def send() -> None:
            nonlocal sent
            async with client.producer() as producer:
                while not done.is_set():
                    await producer.send("orders", str(sent))
                    sent += 1

        async def come() -> None:
            nonlocal newcomers
            while not done.is_set():
                async with ledgermq.connect(node.address, tls=tls, timeout_s=SLOW_S, on_trouble=note) as another:
                    await another.describe_cluster()
                newcomers += 1

        async def settle(before: object) -> None:
            await until(lambda: certificates.loaded is not before)
            goal = sent + 20, newcomers + 5
            for _ in range(3):  # the client that stays looks at the files when it makes a call
                await client.describe_cluster()
                await asyncio.sleep(2 * QUICK_S)
            await until(lambda: sent >= goal[0] and newcomers >= goal[1])

        await client.create_topic("orders", 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            tasks.create_task(come())
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
            done.set()
        assert troubles == []
        table = await client.read_arrow("orders")
    assert table.column("value").to_pylist() == [str(number).encode() for number in range(sent)]


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
