"""A gateway says in which rack it runs, for its calls and for its streams. Real processes."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path

import httpx
import pytest

import ledgermq
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.gateway.test_process import started

SENT = 200_000
"""Bytes of a record that no compression makes smaller."""


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_a_gateway_sends_and_reads_counts_for_its_rack(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers:
        await asyncio.to_thread(brokers.start, "--rack", "zone-1")
        async with ledgermq.connect(brokers.addresses) as client:
            await client.create_topic("t", 1)

            async def crossed() -> tuple[int, int]:
                [other] = [each for each in (await client.describe_costs()).traffic if each.rack == "other"]
                return other.bytes_in, other.bytes_out

            for rack, least in (("zone-2", SENT), ("zone-1", 0)):
                before = await crossed()
                options = ("gateway", "--target", brokers.addresses, "--port", "0", "--rack", rack)
                process, port = await started(tmp_path / f"{rack}.log", r"http://127.0.0.1:(\d+)", *options)
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                    value = base64.b64encode(os.urandom(SENT)).decode()
                    sent = await http.post("/v1/topics/t/records", json={"records": [{"value_base64": value}]})
                    assert sent.status_code == 200, sent.text
                    read = await http.get("/v1/topics/t/partitions/0/records", params={"from": "earliest"})
                    assert read.status_code == 200, read.text
                process.send_signal(signal.SIGTERM)
                await process.wait()
                came, went = (now - old for now, old in zip(await crossed(), before, strict=True))
                assert least <= came <= 1.5 * least
                assert least <= went <= 2.5 * least
