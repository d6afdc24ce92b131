"""`ledgermq gateway` and `ledgermq dev --http` as processes: started, used, stopped by SIGTERM with streams open."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import START_S_MAX, STOP_S_MAX, BrokerProcesses

pytestmark = pytest.mark.slow


def text_of(log: Path) -> str:
    return log.read_text()


async def started(log: Path, pattern: str, *arguments: str) -> tuple[asyncio.subprocess.Process, int]:
    """Start a command, and return it with the port that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    with log.open("wb") as output:
        command = [sys.executable, "-m", "ledgermq.cli.main", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
    async with asyncio.timeout(START_S_MAX):
        while (found := re.search(pattern, text_of(log))) is None:
            assert process.returncode is None, text_of(log)
            await asyncio.sleep(0.05)
    return process, int(found[1])


async def test_a_gateway_stops_with_open_streams_and_its_last_records_are_stored(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        brokers.start_all(2)
        arguments = [
            "gateway",
            "--target",
            brokers.addresses,
            "--port",
            "0",
            "--drain-ms",
            "5000",
            "--streams-end-ms",
            "4000",
        ]
        gateway, port = await started(log, r"http://127.0.0.1:(\d+)", *arguments)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                made = await http.post("/v1/topics", json={"name": "t", "partitions": 2})
                assert made.status_code == 201, made.text
                assert (await http.get("/readyz")).status_code == 200
                assert (await http.get("/readyz")).content == b""

                async def listen() -> list[str]:
                    async with http.stream("GET", "/v1/topics/t/events?from=earliest") as response:
                        return [line async for line in response.aiter_lines() if line.startswith("data")]

                listeners = [asyncio.create_task(listen()) for _ in range(3)]
                await asyncio.sleep(1)
                gateway.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)
                assert (await http.get("/readyz")).status_code == 503
                late = await http.post("/v1/topics/t/records", json={"records": [{"value": "late"}] * 10})
                assert late.status_code == 200, late.text
                heard = await asyncio.gather(*listeners)
                assert [len(lines) for lines in heard] == [10, 10, 10]
            assert await asyncio.wait_for(gateway.wait(), STOP_S_MAX) == 0, log.read_text()
        finally:
            if gateway.returncode is None:
                gateway.kill()
                await gateway.wait()
        text = log.read_text()
        assert "Traceback" not in text, text
        assert "/v1/topics/{topic}/records" in text, "requests are logged by their route"
        assert "from=earliest" not in text, "and without their query"


async def test_dev_serves_http(tmp_path: Path) -> None:
    log = tmp_path / "dev.log"
    arguments = ["dev", str(tmp_path / "root"), "--port", "0", "--http", "0"]
    dev, port = await started(log, r"curl -s localhost:(\d+)/v1/topics", *arguments)
    try:
        async with httpx.AsyncClient(base_url=f"http://localhost:{port}", timeout=60) as http:
            assert f"open http://localhost:{port}/console" in log.read_text()
            assert "/console/app.js" in (await http.get("/console")).text
            made = await http.post("/v1/topics", json={"name": "t", "partitions": 1})
            assert made.status_code == 201, made.text
            stored = await http.post("/v1/topics/t/records", json={"records": [{"value": "a"}]})
            assert stored.status_code == 200, stored.text
            page = (await http.get("/v1/topics/t/records")).json()
            assert [record["value"] for record in page["records"]] == ["a"]
            assert (await http.get("/v1/topics", headers={"Host": "evil.example"})).status_code == 421
            assert (await http.get("/v1/topics", headers={"Origin": "http://evil.example"})).status_code == 403
        dev.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(dev.wait(), STOP_S_MAX) == 0, log.read_text()
    finally:
        if dev.returncode is None:
            dev.kill()
            await dev.wait()
    assert "Traceback" not in log.read_text(), log.read_text()
