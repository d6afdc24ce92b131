"""What the store makes of answers that Google may give, and that it asks only once. Statuses and codes are those of
Google's pages "HTTP status and error codes" for XML and for JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google.auth
import pytest
from google.auth.credentials import Credentials

from infra.fake_gcs import write_service_account
from ledgermq.errors import InvalidConfig, LedgerMQError, StoreUnusable, Unauthorized
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.clouds.location import parse_cloud_url
from ledgermq_ledger.object_store.clouds.store import open_gcs
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

SECRET = "hush-hush"
LIFE_MS = 900_000


class Token(Credentials):
    """A credential with a token, and neither a private key nor the name of a service account."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = SECRET
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    def refresh(self, request: object) -> None:
        raise AssertionError("the token is valid")


@pytest.fixture
async def running(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[tuple[ScriptedServer, ObjectStore]]:
    answer = getattr(request.node, "callspec", None) and request.node.callspec.params.get("answer")
    monkeypatch.setattr(s3_wire, "SILENCE_S_MAX", 1.5 if answer and answer.failure == "silent" else 20.0)
    account = tmp_path / "account.json"
    with scripted_server() as server:
        write_service_account(account, f"{server.endpoint}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        async with await open_gcs(f"gs://bucket/root?endpoint={server.endpoint}") as store:
            yield server, store


@pytest.fixture
def server(running: tuple[ScriptedServer, ObjectStore]) -> ScriptedServer:
    """It gives a token first: the account's file names no other place to get one."""
    running[0].script.append(token())
    return running[0]


@pytest.fixture
def store(running: tuple[ScriptedServer, ObjectStore]) -> ObjectStore:
    return running[1]


def token() -> Answer:
    said = {"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"}
    return Answer(200, json.dumps(said).encode(), {"Content-Type": "application/json"})


def xml(code: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>why</Message></Error>".encode()


def in_json(status: int, reason: str, message: str = "why") -> Answer:
    error = {"code": status, "message": message, "errors": [{"reason": reason, "message": message}]}
    return Answer(status, json.dumps({"error": error}).encode(), {"Content-Type": "application/json"})


BY_XML: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "put_if_absent": lambda store: store.put_if_absent("a/b", [b"x" * 100_000]),
    "put": lambda store: store.put("a/b", b"x"),
    "get": lambda store: store.get("a/b"),
    "get_range": lambda store: store.get_range("a/b", 3, 4),
    "get_suffix": lambda store: store.get_suffix("a/b", 4),
}
BY_JSON: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "head": lambda store: store.head("a/b"),
    "delete": lambda store: store.delete(["a/b"]),
    "list": lambda store: anext(aiter(store.list("a/"))),
}
LOST: list[tuple[Answer, type[LedgerMQError]]] = [
    (Answer(failure="reset"), StoreUncertain),
    (Answer(failure="silent"), StoreUncertain),
]
XML_ANSWERS: list[tuple[Answer, type[LedgerMQError]]] = [
    (Answer(400, xml("InvalidArgument")), StoreUnusable),
    (Answer(401, xml("AuthenticationRequired")), Unauthorized),
    (Answer(403, xml("AccessDenied")), Unauthorized),
    (Answer(403, xml("UserProjectAccountProblem")), Unauthorized),
    (Answer(403, xml("RetentionPolicyNotMet")), StoreUnusable),
    (Answer(403, xml("ObjectUnderActiveHold")), StoreUnusable),
    (Answer(404, xml("NoSuchBucket")), StoreUnusable),
    (Answer(408, b""), StoreUncertain),
    (Answer(429, xml("SlowDown")), StoreThrottled),
    (Answer(500, xml("InternalError")), StoreUncertain),
    (Answer(502, b"<html>"), StoreUncertain),
    (Answer(503, xml("ServiceUnavailable")), StoreThrottled),
    (Answer(504, b""), StoreUncertain),
    *LOST,
]
JSON_ANSWERS: list[tuple[Answer, type[LedgerMQError]]] = [
    (in_json(400, "invalid"), StoreUnusable),
    (in_json(401, "authError"), Unauthorized),
    (in_json(403, "forbidden"), Unauthorized),
    (in_json(403, "rateLimitExceeded"), StoreThrottled),
    (in_json(403, "retentionPolicyNotMet"), StoreUnusable),
    (in_json(404, "notFound", "The specified bucket does not exist."), StoreUnusable),
    (in_json(408, "uploadBrokenConnection"), StoreUncertain),
    (in_json(429, "rateLimitExceeded"), StoreThrottled),
    (in_json(500, "internalError"), StoreUncertain),
    (Answer(502, b"<html>"), StoreUncertain),
    (in_json(503, "backendError"), StoreThrottled),
    *LOST,
]


def named(value: object) -> str:
    return f"{value.status}-{value.failure}" if isinstance(value, Answer) else getattr(value, "__name__", str(value))


@pytest.mark.parametrize("call", [*BY_XML, *BY_JSON])
async def test_a_request_brings_the_token_of_the_chain(store: ObjectStore, server: ScriptedServer, call: str) -> None:
    server.answer = Answer(403, xml("AccessDenied"))
    with pytest.raises(Unauthorized):
        await (BY_XML | BY_JSON)[call](store)
    assert server.requests[0] == "POST /token"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("call", "answer", "error"),
    [
        *((call, *found) for call in BY_XML for found in XML_ANSWERS),
        *((call, *found) for call in BY_JSON for found in JSON_ANSWERS),
    ],
    ids=named,
)
async def test_each_answer_is_one_error_of_the_contract(
    store: ObjectStore, server: ScriptedServer, call: str, answer: Answer, error: type[LedgerMQError]
) -> None:
    server.answer = answer
    with pytest.raises(LedgerMQError) as raised:
        await (BY_XML | BY_JSON)[call](store)
    assert type(raised.value) is error, raised.value
    assert server.requests[0] == "POST /token"
    assert len(server.requests) == 2, "asked more than once: a hidden retry"
    assert SECRET not in str(raised.value)
    assert "Signature" not in str(raised.value)


async def test_a_lost_race_is_told_by_status_412(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(412, xml("PreconditionFailed"))
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("a/b", [b"x"])


async def test_missing_objects(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(404, xml("NoSuchKey"))
    for call in (store.get("a/b"), store.get_suffix("a/b", 3), store.get_range("a/b", 1, 2)):
        with pytest.raises(ObjectMissing):
            await call
    server.answer = in_json(404, "notFound", "No such object: bucket/root/a/b")
    await store.delete(["a/b", "a/c"])
    with pytest.raises(ObjectMissing):
        await store.head("a/b")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(400, xml("ExpiredToken")), FenceClosed),
        (Answer(403, xml("SignatureDoesNotMatch")), Unauthorized),
        (Answer(412, xml("PreconditionFailed")), AlreadyExists),
        (Answer(503, xml("ServiceUnavailable")), StoreThrottled),
        (Answer(failure="reset"), StoreUncertain),
    ],
    ids=named,
)
async def test_answers_to_fenced_puts(
    store: ObjectStore, running: tuple[ScriptedServer, ObjectStore], answer: Answer, error: type[LedgerMQError]
) -> None:
    puts = await store.fenced_puts("fence", ["a/b"], LIFE_MS)
    running[0].requests.clear()
    running[0].answer = answer
    with pytest.raises(error):
        await puts.put_if_absent("a/b", [b"x"])
    assert running[0].requests == ["PUT /bucket/root/a/b"]


async def test_credentials_that_cannot_sign_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(**_: Any) -> tuple[Credentials, None]:
        return Token(), None

    monkeypatch.setattr(google.auth, "default", default)
    with scripted_server() as server:
        async with await open_gcs(f"gs://bucket/root?endpoint={server.endpoint}") as store:
            assert await store.share("a/b", 1000) is None
            with pytest.raises(Unauthorized, match="cannot sign URLs"):
                await store.fenced_puts("fence", ["a/b"], LIFE_MS)


async def test_a_refused_renewal_of_a_token(store: ObjectStore, running: tuple[ScriptedServer, ObjectStore]) -> None:
    said = json.dumps({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}).encode()
    running[0].answer = Answer(400, said, {"Content-Type": "application/json"})
    for call in (BY_XML["get"], BY_JSON["head"]):
        with pytest.raises(Unauthorized, match="Google refuses these credentials"):
            await call(store)


async def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(Unauthorized, match="there are no Google credentials"):
        await open_gcs("gs://bucket/root")


async def test_a_file_that_holds_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text('{"type": "service_account", "private_key": "hush"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(Unauthorized) as raised:
        await open_gcs("gs://bucket/root")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://account@bucket/prefix", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://Bucket/prefix", "not a valid name of a bucket"),
        ("gs://bucket/../x", "a prefix has"),
        ("gs://bucket?key=hush", "unknown parameter key"),
        ("gs://bucket?endpoint=ftp://x", "the endpoint has to be"),
        ("gcs://bucket/x", "write it with gs://"),
    ],
)
async def test_urls_that_open_no_store(url: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)) as raised:
        await open_store(url, sources=Sources())
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("url", ["gs://bucket", "gs://bucket.of.mine/a/b?endpoint=http://127.0.0.1:1"])
def test_a_url_is_written_as_it_was_read(url: str) -> None:
    assert parse_cloud_url(url).url == url
