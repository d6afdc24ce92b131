"""The client of docs/protocol.md, which is written from the page alone, against real brokers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message

import ledgermq
from examples.protocol.minimal_client import M, MinimalClient, Refused, Session
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.e2e.serving_tls import serving
from tests.waiting import until_two_own

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "protocol" / "minimal_client.py"


class SendsTwice(MinimalClient):
    """As if each first answer were lost."""

    def _call(self, address: str, method: str, request: Message, answers: type[M]) -> M:
        super()._call(address, method, request, answers)
        return super()._call(address, method, request, answers)


async def test_it_produces_and_fetches_and_is_redirected(tmp_path: Path) -> None:
    quick = {"heartbeat_interval_ms": 200, "holding_ms": 200}
    async with (
        serving(tmp_path / "root", **quick) as first,
        serving(tmp_path / "root", **quick) as second,
        ledgermq.connect(first.address) as client,
    ):
        await client.create_topic("orders", 6)
        await until_two_own(client)

        def program() -> None:
            one, other = SendsTwice(first.address), MinimalClient(second.address)
            for partition in range(6):
                session = Session()
                assert one.produce("orders", partition, [b"a", b"b"], session) == 0
                assert other.produce("orders", partition, [b"c"], session) == 2
                assert list(other.fetch("orders", partition, 1)) == [(1, b"b"), (2, b"c")]
            with pytest.raises(Refused, match="UNKNOWN_TOPIC"):
                one.produce("none", 0, [b"a"], Session())
            with pytest.raises(Refused, match="OFFSET_OUT_OF_RANGE"):
                list(one.fetch("orders", 0, 77))

        await asyncio.to_thread(program)


async def test_it_runs_as_a_program(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as node, ledgermq.connect(node.address) as client:
        await client.create_topic("orders", 1)
        for task, said in (("produce", ""), ("fetch", "0 0\n1 1\n2 2\n3 3\n4 4\n")):
            command = [sys.executable, str(PROGRAM), task, node.address, "orders", "0", "0", "5"]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False, timeout=120
            )
            assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_it_uses_nothing_of_the_sdk() -> None:
    names = {
        line.split()[1] for line in PROGRAM.read_text(encoding="utf-8").splitlines() if line.startswith("from ledgermq")
    }
    assert names == {"ledgermq.protocol"}
    assert pb.DESCRIPTOR.package == "ledgermq.v1"
