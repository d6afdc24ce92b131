"""A broker with rules, as a real process on loopback, and callers of several rights: `nobody` (a token
and no rule), `mallory` (everything on names that begin with `mine`), `victim` (everything else).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

import ledgermq
from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.protocol.api import Connection
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import Method
from ledgermq.protocol.naming.tokens import bearer
from tests.certificates import Authority
from tests.e2e.processes import QUICK, BrokerProcess, BrokerProcesses

OPTIONS = (*QUICK, "--security", "rules", "--super-principals", "user:root")
SLOW_S = 60.0
"""Time-outs of callers: for a machine that is five times slower."""
SEND_S_MAX = 25.0
"""No record of a well-behaved principal waits longer, on such a machine; an attack that succeeds holds it up
for the whole time of its delivery.
"""

Bytes = Callable[[object], bytes]


@dataclass
class Attacked:
    """A broker, its clients' address, and a token of each caller."""

    processes: BrokerProcesses
    broker: BrokerProcess
    audit: Path
    tokens: dict[str, str]
    authority: Authority | None = None

    @property
    def host(self) -> str:
        return self.broker.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.broker.address.rpartition(":")[2])

    def client(self, who: str) -> ledgermq.Client:
        tls = None if self.authority is None else self.authority.tls()
        return ledgermq.connect(self.broker.address, token=self.tokens[who], timeout_s=SLOW_S, tls=tls)

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def metadata(self, who: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[who]}"),) if who else ()


@asynccontextmanager
async def attacked(folder: Path, *options: str, with_tls: bool = False) -> AsyncIterator[Attacked]:
    root_url = (folder / "root").as_uri()
    audit = folder / "audit.jsonl"
    tokens = await _prepared(root_url)
    authority = Authority(folder) if with_tls else None
    if authority is not None:
        pair = authority.issue("broker")
        files = (f"--tls-cert-file={pair.cert}", f"--tls-key-file={pair.key}", f"--tls-ca-file={authority.ca}")
        options = (*options, *files)
    with BrokerProcesses(folder, root_url, OPTIONS) as processes:
        broker = await asyncio.to_thread(processes.start, "--audit-file", str(audit), *options)
        yield Attacked(processes, broker, audit, tokens, authority)


async def _prepared(root_url: str) -> dict[str, str]:
    """Make rules, a topic and a token of each caller, in this process: before a root is served, its files decide."""
    async with ledgermq.connect(root_url, timeout_s=SLOW_S) as client:
        await client.create_topic("orders", 4)
        for name, names in (("mallory", "mine*"), ("victim", "*")):
            await client.access.grant(f"user:{name}", "produce,consume,create,alter,delete", names)
            await client.access.grant(f"user:{name}", "group", names)
            await client.access.grant(f"user:{name}", "transaction", names)
        return {
            name: (await client.access.create_token(name)).token for name in ("root", "nobody", "mallory", "victim")
        }


@asynccontextmanager
async def raw_channel(at: Attacked) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own, without the SDK."""
    options = (*GRPC_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(at.broker.address, options=options) as channel:
        yield channel


@asynccontextmanager
async def line_of(at: Attacked, who: str) -> AsyncIterator[Connection]:
    """The protocol itself, without what the SDK adds to it. `who`: "" for a caller without a credential."""
    proof = bearer(at.tokens[who]) if who else ""
    line = GrpcConnector(request_timeout_s=SLOW_S, credential=lambda _: proof).connect(at.broker.address)
    try:
        yield line
    finally:
        await line.close()


async def status_of(call: Awaitable[object]) -> tuple[grpc.StatusCode, str]:
    """How a call ended."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return grpc.StatusCode.OK, ""


def unary(channel: grpc.aio.Channel, method: Method) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(method.path)


async def slowest_send_s(producer: ledgermq.Producer, seconds: float) -> float:
    """The longest time to an acknowledgement, of records sent one after the other."""
    slowest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        await producer.send("orders", b"x" * 100)
        slowest = max(slowest, time.monotonic() - begun)
    return slowest
