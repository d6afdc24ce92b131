"""What `S3Store` makes of every answer that S3 may give, and that it asks only once."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path

import pytest

from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable, Unauthorized
from ledgermq_ledger.object_store.contract import (
    AlreadyExists,
    FenceClosed,
    ObjectMissing,
    ObjectStore,
    StoreThrottled,
    StoreUncertain,
)
from ledgermq_ledger.object_store.s3 import obstore_wire as s3_obstore
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.object_store.s3.store import CLIENTS, S3Store, open_s3
from tests.servers.scripted_server import Answer, ScriptedServer, scripted_server

LIFE_MS = 900_000


@pytest.fixture(params=CLIENTS)
async def running(
    request: pytest.FixtureRequest, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ScriptedServer, S3Store]]:
    answer = request.node.callspec.params.get("answer")
    monkeypatch.setattr(s3_wire, "SILENCE_S_MAX", 1.5 if answer is not None and answer.failure == "silent" else 20.0)
    root = f"s3://bucket/root?endpoint={scripted.endpoint}&region=eu-central-1"
    async with await open_s3(root, request.param) as store:
        yield scripted, store


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    with scripted_server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
        yield server


@pytest.fixture
def server(running: tuple[ScriptedServer, S3Store]) -> ScriptedServer:
    running[0].answer = Answer()
    running[0].requests.clear()
    return running[0]


@pytest.fixture
def library(request: pytest.FixtureRequest) -> str:
    """What sends the requests of `store`."""
    return str(request.node.callspec.params["running"])


@pytest.fixture
def store(running: tuple[ScriptedServer, S3Store]) -> ObjectStore:
    return running[1]


def xml(code: str, message: str = "why") -> bytes:
    return f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


CALLS: dict[str, Callable[[ObjectStore], Awaitable[object]]] = {
    "put_if_absent": lambda store: store.put_if_absent("a/b", [b"x" * 100_000]),
    "put": lambda store: store.put("a/b", b"x"),
    "get": lambda store: store.get("a/b"),
    "get_range": lambda store: store.get_range("a/b", 3, 4),
    "get_suffix": lambda store: store.get_suffix("a/b", 4),
    "delete": lambda store: store.delete(["a/b"]),
    "delete many": lambda store: store.delete(["a/b", "a/c"]),
    "list": lambda store: anext(aiter(store.list("a/"))),
}

ANSWERS: list[tuple[Answer, type[LedgerMQError]]] = [
    (Answer(400, xml("ExpiredToken")), Unauthorized),
    (Answer(400, xml("RequestTimeout")), StoreUncertain),
    (Answer(400, xml("InvalidRequest")), StoreUnusable),
    (Answer(401, b""), Unauthorized),
    (Answer(403, xml("SignatureDoesNotMatch")), Unauthorized),
    (Answer(403, xml("AccessDenied", "Request has expired")), Unauthorized),
    (Answer(404, xml("NoSuchBucket")), StoreUnusable),
    (Answer(404, b"<html>Nothing here</html>"), StoreUnusable),
    (Answer(408, b""), StoreUncertain),
    (Answer(409, xml("ConditionalRequestConflict")), StoreUncertain),
    (Answer(409, xml("OperationAborted")), StoreUncertain),
    (Answer(429, b"go away"), StoreThrottled),
    (Answer(500, xml("InternalError")), StoreUncertain),
    (Answer(501, xml("NotImplemented")), StoreUnusable),
    (Answer(502, b"<html>"), StoreUncertain),
    (Answer(503, xml("SlowDown")), StoreThrottled),
    (Answer(503, b""), StoreThrottled),
    (Answer(504, b""), StoreUncertain),
    (Answer(507, xml("XMinioStorageFull")), StoreFull),
    (Answer(403, xml("QuotaExceeded")), StoreFull),
    (Answer(failure="reset"), StoreUncertain),
    (Answer(failure="silent"), StoreUncertain),
    (Answer(500, b"<Error>", failure="truncated"), StoreUncertain),
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
    assert type(raised.value) is error
    assert len(server.requests) == 1, "asked more than once: a hidden retry"
    assert "hush-hush" not in str(raised.value)
    assert "Signature=" not in str(raised.value)


SKEWED = {
    "RequestTimeTooSkewed": "The difference between the request time and the server's time is too large.",
    "AccessDenied": "Request is not valid yet",  # as MinIO says it of a presigned URL
}


@pytest.mark.parametrize("call", ["put_if_absent", "get", "list"])
@pytest.mark.parametrize("code", SKEWED)
@pytest.mark.parametrize(("store_is_behind_s", "said"), [(3600, "60 min ahead of"), (-7200, "120 min behind")])
async def test_a_clock_that_is_off_is_named_with_how_far_it_is(
    store: ObjectStore, server: ScriptedServer, library: str, call: str, code: str, store_is_behind_s: int, said: str
) -> None:
    server.answer = Answer(
        403, xml(code, SKEWED[code]), date=formatdate(time.time() - store_is_behind_s + 0.9, usegmt=True)
    )
    with pytest.raises(Unauthorized) as raised:
        await CALLS[call](store)
    # it sends no presigned URLs, of which this is said
    if code == "AccessDenied" and library == "obstore" and call != "list":
        said = "and the object store's are too far apart"
        assert f"this machine's clock {said}" in str(raised.value)
        return
    off = {said, said.replace("60", "59").replace("120", "119"), said.replace("60", "61").replace("120", "121")}
    assert any(
        f"this machine's clock is {text} the object store's: set this machine's clock" in str(raised.value)
        for text in off
    )
    assert "credentials" not in str(raised.value)
    assert SKEWED[code] in str(raised.value)


async def test_a_clock_that_is_off_is_named_where_the_store_tells_no_time(
    store: ObjectStore, server: ScriptedServer
) -> None:
    """And where it tells it in the body, as AWS does, it is read there."""
    server.answer = Answer(403, xml("RequestTimeTooSkewed"), date="")
    with pytest.raises(Unauthorized, match="clock and the object store's are too far apart: set this machine's clock"):
        await store.get("a/b")
    body = xml("RequestTimeTooSkewed").replace(b"</Error>", b"<ServerTime>2020-01-01T00:00:00Z</ServerTime></Error>")
    server.answer = Answer(403, body, date="")
    with pytest.raises(Unauthorized, match=r"clock is [0-9]+ min ahead of the object store's"):
        await store.get("a/b")


async def test_only_412_says_that_an_object_exists(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(412, xml("PreconditionFailed"))
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("a/b", [b"x"])
    assert server.requests == ["PUT /bucket/root/a/b"]


async def test_an_unknown_error_text_of_obstore_leaves_the_outcome_uncertain(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a release of it worded its errors otherwise: a question for `settle_put`, never won or
    lost.
    """
    monkeypatch.setattr(s3_obstore, "_ANSWER", re.compile("said otherwise"))
    async with await open_s3(f"s3://bucket/root?endpoint={scripted.endpoint}&region=eu-central-1", "obstore") as store:
        for status in (404, 409, 412, 503):
            scripted.answer = Answer(status, xml("PreconditionFailed"))
            with pytest.raises(StoreUncertain) as raised:
                await store.put_if_absent("a/b", [b"x"])
            assert type(raised.value) is StoreUncertain


async def test_throttling_carries_the_stores_wish(store: ObjectStore, server: ScriptedServer, library: str) -> None:
    server.answer = Answer(503, xml("SlowDown"), {"Retry-After": "7"})
    with pytest.raises(StoreThrottled) as raised:
        await store.get("a/b")
    through = library != "obstore"  # which shows no headers of a refusal; back-off is then by our own pauses
    assert raised.value.retry_after_ms == (7000 if through else None)


@pytest.mark.parametrize("retry_after", ["soon", "-1", "Fri, 21 Nov 2026 07:28:00 GMT", "²"])
async def test_an_odd_wish_is_ignored(store: ObjectStore, server: ScriptedServer, retry_after: str) -> None:
    server.answer = Answer(503, b"", {"Retry-After": retry_after.encode().decode("latin-1")})
    with pytest.raises(StoreThrottled) as raised:
        await store.get("a/b")
    assert raised.value.retry_after_ms is None


async def test_redirects_are_not_followed(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(
        301, xml("PermanentRedirect"), {"Location": f"{server.endpoint}/elsewhere", "x-amz-bucket-region": "us-west-2"}
    )
    with pytest.raises(StoreUnusable):
        await store.put_if_absent("a/b", [b"x"])
    server.answer = Answer(307, xml("TemporaryRedirect"), {"Location": f"{server.endpoint}/elsewhere"})
    with pytest.raises(StoreUncertain):
        await store.put_if_absent("a/b", [b"x"])
    assert server.requests == ["PUT /bucket/root/a/b"] * 2


async def test_half_a_body_is_no_body(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(200, b"half of it", failure="truncated")
    with pytest.raises(StoreUncertain):
        await store.get("a/b")


async def test_a_store_that_ignores_ranges_is_refused(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(200, b"the whole object")
    with pytest.raises(StoreUnusable):
        await store.get_range("a/b", 3, 2)


async def test_a_missing_object_and_a_missing_bucket_differ(store: ObjectStore, server: ScriptedServer) -> None:
    server.answer = Answer(404, xml("NoSuchKey"))
    with pytest.raises(ObjectMissing):
        await store.get("a/b")
    with pytest.raises(ObjectMissing):
        await store.head("a/b")
    await store.delete(["a/b"])
    for put in (store.put_if_absent("a/b", [b"x"]), store.put("a/b", b"x")):
        with pytest.raises(StoreUnusable):
            await put


async def test_one_failed_delete_of_many_is_told(store: ObjectStore, server: ScriptedServer) -> None:
    for code, error in (
        ("AccessDenied", Unauthorized),
        ("InternalError", StoreUncertain),
        ("SlowDown", StoreThrottled),
    ):
        failed = f"<Error><Key>root/a/c</Key><Code>{code}</Code><Message>no</Message></Error>"
        server.answer = Answer(
            200, f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{failed}</DeleteResult>'.encode()
        )
        with pytest.raises(error):
            await store.delete(["a/b", "a/c"])


async def test_requests_fail_when_no_process_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    async with await open_s3("s3://bucket/root?endpoint=http://127.0.0.1:1&region=eu-central-1") as store:
        for call in CALLS.values():
            with pytest.raises(StoreUncertain):
                await call(store)


@pytest.mark.parametrize("away_s", [-400, 400])
async def test_no_fenced_puts_when_the_clocks_are_too_far_apart(
    store: ObjectStore, server: ScriptedServer, away_s: int
) -> None:
    now_s = s3_wire.date_ms(formatdate(usegmt=True)) / 1000
    server.answer = Answer(200, date=formatdate(now_s + away_s, usegmt=True))
    with pytest.raises(StoreUncertain, match="clock"):
        await store.fenced_puts("fence", ["a/b"], LIFE_MS)
    server.answer = Answer(200, date=formatdate(now_s + away_s / 2, usegmt=True))
    await store.fenced_puts("fence", ["a/b"], LIFE_MS)


@pytest.mark.parametrize("date", ["", "today", "Sat, 99 Nov 2026 08:00:00 GMT"])
async def test_a_store_without_a_clock_is_refused(store: ObjectStore, server: ScriptedServer, date: str) -> None:
    server.answer = Answer(200, date=date)
    with pytest.raises(StoreUnusable, match="Date header"):
        await store.store_time_ms()


async def test_the_clock_is_read_from_refusals_but_not_from_breakdowns(
    store: ObjectStore, server: ScriptedServer
) -> None:
    server.answer = Answer(403, b"", date="Sat, 21 Nov 2026 08:00:00 GMT")
    assert await store.store_time_ms() == 1_795_248_000_000
    server.answer = Answer(503, b"", date="Sat, 21 Nov 2026 08:00:00 GMT")
    with pytest.raises(StoreThrottled):
        await store.store_time_ms()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(403, xml("AccessDenied", "Request has expired")), FenceClosed),
        (Answer(400, xml("ExpiredToken", "The provided token has expired.")), FenceClosed),
        (Answer(403, xml("AccessDenied", "Access Denied")), Unauthorized),
        (Answer(412, xml("PreconditionFailed")), AlreadyExists),
        (Answer(409, xml("ConditionalRequestConflict")), StoreUncertain),
        (Answer(503, xml("SlowDown")), StoreThrottled),
        (Answer(failure="silent"), StoreUncertain),
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
    assert server.requests == ["PUT /bucket/root/a/b"]


async def test_a_store_that_lists_in_no_order_is_refused(store: ObjectStore, server: ScriptedServer) -> None:
    entry = (
        "<Contents><Key>root/a/{}</Key><Size>1</Size><ETag>x</ETag>"
        "<LastModified>2026-11-21T08:00:00.000Z</LastModified></Contents>"
    )
    page = "".join(entry.format(name) for name in ("1", "3", "2"))
    server.answer = Answer(
        200, f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{page}</ListBucketResult>'.encode()
    )
    with pytest.raises(StoreUnusable, match="ascending"):
        _ = [info async for info in store.list("a/")]


ROLE = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>short</AccessKeyId><SecretAccessKey>hush-hush</SecretAccessKey><SessionToken>hush</SessionToken>
<Expiration>{ends}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""
NO_ROLE = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not yours</Message></Error></ErrorResponse>"


@pytest.mark.parametrize("library", CLIENTS)
async def test_a_refused_renewal_of_a_role(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: str
) -> None:
    """Credentials that end within ten minutes are renewed by each request."""
    config = tmp_path / "config"
    config.write_text(
        "[profile ours]\nrole_arn = arn:aws:iam::1:role/broker\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = key\naws_secret_access_key = hush-hush\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "ours")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", scripted.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    ends = (datetime.now(UTC) + timedelta(minutes=9)).isoformat()
    scripted.answer = Answer(200, ROLE.format(ends=ends).encode(), {"Content-Type": "text/xml"})
    root = f"s3://bucket/root?endpoint={scripted.endpoint}&region=eu-central-1"
    async with await open_s3(root, library) as store:
        scripted.answer = Answer(403, NO_ROLE, {"Content-Type": "text/xml"})
        for call in (CALLS["get"], CALLS["put_if_absent"], CALLS["list"]):
            with pytest.raises(Unauthorized) as raised:
                await call(store)
            assert "hush" not in str(raised.value)
