"""What the store makes of answers that Azure may give, and that it asks only once. Statuses and codes are those of
Microsoft's page "Azure Blob Storage error codes" and "Common REST API error codes".
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from azure.core.exceptions import ClientAuthenticationError

from ledgermq.errors import InvalidConfig, LedgerMQError, StoreFull, StoreUnusable, Unauthorized
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.clouds import azure
from ledgermq_ledger.object_store.clouds.location import parse_cloud_url
from ledgermq_ledger.object_store.clouds.store import open_azure
from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    FenceClosed,
    ObjectMissing,
    ObjectStore,
    StoreThrottled,
    StoreUncertain,
)
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.root.open import open_store
from tests.servers.scripted_server import Answer, ScriptedServer, scripted_server

SECRET = "aHVzaC1odXNoIQ=="
LIFE_MS = 900_000


@pytest.fixture
async def running(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ScriptedServer, ObjectStore]]:
    answer = getattr(request.node, "callspec", None) and request.node.callspec.params.get("answer")
    monkeypatch.setattr(s3_wire, "SILENCE_S_MAX", 1.5 if answer and answer.failure == "silent" else 20.0)
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    with scripted_server() as server:
        async with await open_azure(f"az://bucket/root?account=acc&endpoint={server.endpoint}") as store:
            yield server, store


@pytest.fixture
def server(running: tuple[ScriptedServer, ObjectStore]) -> ScriptedServer:
    return running[0]


@pytest.fixture
def store(running: tuple[ScriptedServer, ObjectStore]) -> ObjectStore:
    return running[1]


def xml(code: str, detail: str = "") -> bytes:
    more = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>" if detail else ""
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>why</Message>{more}</Error>".encode()


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "put_if_absent": lambda store: store.put_if_absent("a/b", [b"x" * 100_000]),
    "put": lambda store: store.put("a/b", b"x"),
    "get": lambda store: store.get("a/b"),
    "get_range": lambda store: store.get_range("a/b", 3, 4),
    "delete": lambda store: store.delete(["a/b"]),
    "list": lambda store: anext(aiter(store.list("a/"))),
}

ANSWERS: list[tuple[Answer, type[LedgerMQError]]] = [
    (Answer(400, xml("InvalidHeaderValue")), StoreUnusable),
    (Answer(401, xml("InvalidAuthenticationInfo")), Unauthorized),
    (Answer(403, xml("AuthenticationFailed")), Unauthorized),
    (Answer(403, xml("AuthorizationPermissionMismatch")), Unauthorized),
    (Answer(403, xml("AccountIsDisabled")), Unauthorized),
    (Answer(404, xml("ContainerNotFound")), StoreUnusable),
    (Answer(408, b""), StoreUncertain),
    (Answer(409, xml("ContainerBeingDeleted")), StoreUncertain),
    (Answer(409, xml("BlobImmutableDueToPolicy")), StoreUnusable),
    (Answer(409, xml("ContainerDisabled")), StoreUnusable),
    (Answer(429, b""), StoreThrottled),
    (Answer(500, xml("InternalError")), StoreUncertain),
    (Answer(500, xml("OperationTimedOut")), StoreUncertain),
    (Answer(502, b"<html>"), StoreUncertain),
    (Answer(503, xml("ServerBusy")), StoreThrottled),
    (Answer(507, b""), StoreFull),
    (Answer(failure="reset"), StoreUncertain),
    (Answer(failure="silent"), StoreUncertain),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("answer", "error"), ANSWERS, ids=lambda v: f"{v.status}-{v.failure}" if isinstance(v, Answer) else v.__name__
)
async def test_each_answer_is_one_error_of_the_contract(
    store: ObjectStore, server: ScriptedServer, call: str, answer: Answer, error: type[LedgerMQError]
) -> None:
    server.answer = answer
    with pytest.raises(LedgerMQError) as raised:
        await CALLS[call](store)
    assert type(raised.value) is error, raised.value
    assert len(server.requests) == 1, "asked more than once: a hidden retry"
    assert SECRET not in str(raised.value)
    assert "sig=" not in str(raised.value)


async def test_a_lost_race_is_told_by_status_409(store: ObjectStore, server: ScriptedServer) -> None:
    for answer in (Answer(409, xml("BlobAlreadyExists")), Answer(412, xml("ConditionNotMet"))):
        server.answer = answer
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("a/b", [b"x"])


async def test_a_missing_blob_is_no_error_of_a_deletion(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(404, xml("BlobNotFound"))
    await store.delete(["a/b", "a/c"])
    for call in (store.get("a/b"), store.get_suffix("a/b", 3), store.head("a/b")):
        with pytest.raises(ObjectMissing):
            await call


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            Answer(403, xml("AuthenticationFailed", "Signature not valid in the specified time frame: Start")),
            FenceClosed,
        ),
        (Answer(403, xml("AuthorizationPermissionMismatch")), Unauthorized),
        (Answer(409, xml("BlobAlreadyExists")), AlreadyExists),
        (Answer(503, xml("ServerBusy")), StoreThrottled),
        (Answer(failure="reset"), StoreUncertain),
    ],
)
async def test_answers_to_fenced_puts(
    store: ObjectStore, server: ScriptedServer, answer: Answer, error: type[LedgerMQError]
) -> None:
    puts = await store.fenced_puts("fence", ["a/b"], LIFE_MS)
    server.requests.clear()
    server.answer = answer
    with pytest.raises(error):
        await puts.put_if_absent("a/b", [b"x"])
    assert server.requests == ["PUT /acc/bucket/root/a/b"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("az://container/prefix", "no storage account is named"),
        ("az://name@account/prefix", "the parameter account"),
        ("az://C/prefix?account=acc", "not a valid name of a container"),
        ("az://container/../x?account=acc", "a prefix has"),
        ("az://container?account=A", "3 to 24 lower-case letters"),
        ("az://container?account=acc&key=hush", "unknown parameter key"),
        ("az://container?account=acc&endpoint=ftp://x", "the endpoint has to be"),
        ("abfss://container@account.dfs.core.windows.net/x", "write it with az://container/prefix?account=name"),
    ],
)
async def test_urls_that_open_no_store(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidConfig, match=re.escape(said)) as raised:
        await open_store(url, sources=Sources())
    assert "hush" not in str(raised.value)


async def test_a_connection_string_names_account_key_and_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server() as server:
        monkeypatch.setenv(
            "AZURE_STORAGE_CONNECTION_STRING",
            f"AccountName=acc;AccountKey={SECRET};BlobEndpoint={server.endpoint}/acc",
        )
        server.answer = Answer(202)
        async with await open_azure("az://bucket/root") as store:
            await store.delete(["a/b"])
            assert store.url == "az://bucket/root"
        assert server.requests == ["DELETE /acc/bucket/root/a/b"]


@pytest.mark.parametrize("url", ["az://container", "az://container/a/b?account=acc&endpoint=http://127.0.0.1:1"])
def test_a_url_is_written_as_it_was_read(url: str) -> None:
    assert parse_cloud_url(url).url == url


class NoToken:
    """An identity of Azure that is known, and gets no token."""

    def get_token(self, *_: object, **__: object) -> None:
        raise ClientAuthenticationError("AADSTS7000222: the client secret has expired")

    def close(self) -> None:
        pass


async def test_a_refused_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_KEY", "KEY", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setattr(azure, "DefaultAzureCredential", NoToken)
    async with await open_azure("az://bucket/root?account=acc&endpoint=https://localhost:1") as store:
        for call in ("get", "put", "put_if_absent"):
            with pytest.raises(Unauthorized, match="AADSTS7000222"):
                await CALLS[call](store)


async def test_requests_are_not_logged(
    store: ObjectStore, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = Answer(202)
    caplog.set_level(logging.INFO)
    await store.delete(["a/b"])
    assert not [record for record in caplog.records if record.name.startswith("azure")]
