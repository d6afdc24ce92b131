"""Where a call comes from, in the audit log of brokers: through a gateway that they believe, and by programs that they
do not. All are real processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

import ledgermq
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import METHODS
from ledgermq.protocol.naming.client_ids import CLIENT_ADDRESS, CLIENT_REQUEST, DELEGATE
from ledgermq.protocol.naming.tokens import AUTHORIZATION, bearer
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.gateway.test_process import started, text_of
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RULES = ("--security", "rules", "--super-principals", "user:root", "--delegates", "user:gateway")
CREATE = next(method for method in METHODS if method.name == "CreateTopic")


def lines(audit: Path, **wanted: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
    return [line for line in found if all(line.get(name) == value for name, value in wanted.items())]


async def one(audit: Path, **wanted: str) -> dict[str, Any]:
    await until(lambda: bool(lines(audit, **wanted)))
    [found] = lines(audit, **wanted)
    return found


async def create(address: str, topic: str, *metadata: tuple[str, str]) -> None:
    """Create a topic by gRPC, with this metadata."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = CREATE.encode_request(pb.CreateTopicRequest(name=topic, partitions=1, nonce=os.urandom(16)))
        await channel.unary_unary(CREATE.path, bytes, bytes)(request, metadata=metadata, timeout=60)


async def test_the_audit_log_has_the_client_and_the_gateway(tmp_path: Path) -> None:
    audit, root_url = tmp_path / "audit.jsonl", (tmp_path / "root").as_uri()
    with BrokerProcesses(tmp_path, root_url, (*QUICK, *RULES)) as brokers:
        await asyncio.to_thread(brokers.start, "--audit-file", str(audit))
        async with ledgermq.connect(root_url) as embedded:
            root = (await embedded.access.create_token("root")).token
        async with ledgermq.connect(brokers.addresses, token=root) as admin:
            alice = (await admin.access.create_token("alice")).token
            own = await admin.access.create_token("gateway")
            await admin.access.grant("user:alice", "create,describe", "t*")
            token_file = tmp_path / "gateway.token"
            token_file.touch(0o600)
            token_file.write_text(own.token)
            process, port = await started(
                tmp_path / "gateway.log",
                r"http://127.0.0.1:(\d+)",
                *("gateway", "--target", brokers.addresses, "--port", "0"),
                *("--delegate-token-file", str(token_file), "--trusted-proxies", "127.0.0.1"),
            )
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                    await _through_the_gateway(http, audit, tmp_path / "gateway.log", bearer(alice))
                    await _by_other_programs(brokers.addresses, audit, alice, own.token)
                    await admin.access.revoke_token(own.token_id)
                    made = await http.post(
                        "/v1/topics",
                        json={"name": "t-later", "partitions": 1},
                        headers={"Authorization": bearer(alice), "X-Forwarded-For": "198.51.100.7"},
                    )
                    assert made.status_code == 201, "a gateway that is not believed serves its callers as before"
                    line = await one(audit, operation="create", resource="t-later", event="allowed")
                    assert not {"client", "delegate"} & line.keys()
            finally:
                process.send_signal(signal.SIGKILL)
                await process.wait()
        log, text = text_of(tmp_path / "gateway.log"), text_of(audit)
        for secret in (root, alice, own.token):
            assert secret not in log
            assert secret not in text


async def _through_the_gateway(http: httpx.AsyncClient, audit: Path, log: Path, credential: str) -> None:
    async def post(topic: str, request_id: str, forwarded: str, *, with_token: bool = True) -> int:
        headers = {"LedgerMQ-Request-Id": request_id, "X-Forwarded-For": forwarded}
        headers |= {"Authorization": credential} if with_token else {}
        answer = await http.post("/v1/topics", json={"name": topic, "partitions": 1}, headers=headers)
        return answer.status_code

    assert await post("t-1", "first-1", "6.6.6.6, 198.51.100.7") == 201
    line = await one(audit, operation="create", resource="t-1", event="allowed")
    assert (line["principal"], line["client"], line["delegate"]) == ("user:alice", "198.51.100.7", "user:gateway")
    assert (line["client_request"], line["connection"].startswith("ipv4:127.0.0.1:")) == ("first-1", True)
    assert await post("t-2", "second-2", "198.51.100.8") == 201
    line = await one(audit, operation="create", resource="t-2", event="allowed")
    assert (line["client"], line["client_request"]) == ("198.51.100.8", "second-2"), "of this request, not the last one"
    assert await post("other", "third-3", "198.51.100.9") == 403
    line = await one(audit, operation="create", resource="other", event="refused")
    assert (line["client"], line["client_request"]) == ("198.51.100.9", "third-3")
    assert await post("t-3", "fourth-4", "198.51.100.10", with_token=False) == 401
    line = await one(audit, principal="unknown", client="198.51.100.10")
    assert (line["event"], line["delegate"]) == ("refused", "user:gateway"), "the gateway's own token admits no caller"
    logged, audited = text_of(log), text_of(audit)
    assert all(found in logged for found in ("first-1", "198.51.100.7")), "the gateway's log has the same"
    assert "6.6.6.6" not in logged + audited, "what a client writes before its proxy does not count"


async def _by_other_programs(target: str, audit: Path, alice: str, gateway: str) -> None:
    claims = ((CLIENT_ADDRESS, "203.0.113.1"), (CLIENT_REQUEST, "forged"))
    attempts = {
        "t-none": (),
        "t-own": ((DELEGATE, bearer(alice)),),
        "t-wrong": ((DELEGATE, "Bearer wrong"),),
    }
    for topic, delegate in attempts.items():
        await create(target, topic, (AUTHORIZATION, bearer(alice)), *claims, *delegate)
        line = await one(audit, operation="create", resource=topic, event="allowed")
        assert not {"client", "client_request", "delegate"} & line.keys(), line
    await create(target, "t-true", (AUTHORIZATION, bearer(alice)), *claims, (DELEGATE, bearer(gateway)))
    line = await one(audit, operation="create", resource="t-true", event="allowed")
    assert (line["client"], line["client_request"], line["delegate"]) == ("203.0.113.1", "forged", "user:gateway")
    with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
        await create(target, "t-alone", *claims, (DELEGATE, bearer(gateway)))
