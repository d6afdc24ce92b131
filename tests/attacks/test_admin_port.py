"""Idle connections to the admin port of a process that may open 1,024 files."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

import ledgermq
from tests.attacks.cluster import SEND_S_MAX, SLOW_S, attacked, slowest_send_s
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import BrokerProcesses

PAGE = " ".join(Path("docs/access.md").read_text().split())
IDLE = 1200
FILES = 1024


@pytest.mark.slow
async def test_idle_connections_to_the_admin_port_take_no_files_of_a_broker(tmp_path: Path) -> None:
    """They took all of them: no segment could be put any longer."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 4 * IDLE:
        pytest.skip(f"this machine lets a process open {before[1]} files only")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        processes = stack.enter_context(BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, before[1]))
        try:
            broker = await asyncio.to_thread(processes.start, *ADMIN)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4 * IDLE, before[1]))
        admin = AdminPort(broker)
        host, _, port = admin.address.rpartition(":")
        for _ in range(IDLE):
            line = stack.enter_context(socket.create_connection((host, int(port)), timeout=SLOW_S))
            line.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        async with ledgermq.connect(broker.address, timeout_s=SLOW_S) as client, client.producer() as producer:
            await client.create_topic("orders", 4)
            assert await slowest_send_s(producer, 3) < SEND_S_MAX
        assert (await asyncio.to_thread(admin.get, "/livez"))[0] == 200
        assert not re.search("Too many open files", broker.text())
        files = len(os.listdir(f"/proc/{broker.pid}/fd"))
        assert files < FILES // 2


@pytest.mark.slow
async def test_what_the_page_about_access_says_of_metrics(tmp_path: Path) -> None:
    """It said that the admin port shows no names of topics."""
    assert "the admin port, whose `/metrics` show names of topics and groups" in PAGE
    async with attacked(tmp_path, *ADMIN) as at:
        admin = AdminPort(at.broker)
        async with at.client("victim") as client, client.producer() as producer:
            await producer.send("orders", b"x")
            async with client.consumer("orders", group="billing", commit="manual") as consumer:
                (await anext(aiter(consumer))).ack()
                await consumer.commit()
        for label in ('topic="orders"', 'group="billing"'):
            await until_shown(admin, label)
        metrics = (await asyncio.to_thread(admin.get, "/metrics"))[1]
        assert not any(token in metrics for token in at.tokens.values())


async def until_shown(admin: AdminPort, label: str) -> None:
    async with asyncio.timeout(SLOW_S):
        while label not in (await asyncio.to_thread(admin.get, "/metrics"))[1]:
            await asyncio.sleep(0.2)
