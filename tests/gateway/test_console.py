"""The console over HTTP, without a browser: its files, its cookie, and what a cookie may do."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_gateway.console.cookies import COOKIE, KEY_BYTES, LASTS_S, TOKEN_CHARS_MAX, Cookies, key_of
from ledgermq_gateway.console.pages import FILES
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.settings import GatewaySettings, hosts_of
from tests.gateway.test_events import produce, topic
from tests.gateway.world import World, world

CHANGE = {"LedgerMQ-Console": "1", "Sec-Fetch-Site": "same-origin"}
READ = {"Sec-Fetch-Site": "same-origin"}
NOW_MS = 1_700_000_000_000


def marked(at: World) -> dict[str, str]:
    return CHANGE | {"Origin": at.url}


async def sign_in(at: World, who: dict[str, str]) -> str:
    """Return the value of the cookie."""
    answer = await at.http.post("/console/session", headers=marked(at) | who)
    assert answer.status_code == 200, answer.text
    at.http.cookies.clear()
    return str(re.match(rf"{COOKIE}=([^;]+);", answer.headers["Set-Cookie"])[1])  # type: ignore[index]  # it matches


async def code(at: World, method: str, path: str, headers: dict[str, str], **more: Any) -> tuple[int, str]:
    answer = await at.http.request(method, path, headers=headers, **more)
    at.http.cookies.clear()
    body = answer.json() if answer.content else {}
    return answer.status_code, body.get("code", "") if isinstance(body, dict) else ""


def test_a_cookie_opens_with_its_key_until_its_end_and_does_not_show_the_token() -> None:
    cookies = Cookies(os.urandom(KEY_BYTES), os.urandom)
    header = cookies.sealed("lmq_secret", NOW_MS)
    value = header.partition("=")[2].partition(";")[0]
    assert header.endswith(f"; HttpOnly; Secure; SameSite=Strict; Path=/; Max-Age={LASTS_S}")
    assert "lmq_secret" not in header
    assert cookies.sealed("lmq_secret", NOW_MS) != header, "a nonce is used once"
    proof = cookies.opened(value)
    assert proof.token == "lmq_secret"
    proof.check(NOW_MS + LASTS_S * 1000 - 1)
    for wrong in (value[:-4] + "AAAA", value[4:], "", "x", "é"):
        with pytest.raises(Problem, match="sign in again"):
            cookies.opened(wrong)
    with pytest.raises(Problem, match="is over"):
        proof.check(NOW_MS + LASTS_S * 1000)
    with pytest.raises(Problem, match="has not made"):
        Cookies(os.urandom(KEY_BYTES), os.urandom).opened(value)
    with pytest.raises(Problem, match="too many for a cookie"):
        cookies.sealed("x" * (TOKEN_CHARS_MAX + 1), NOW_MS)
    assert len(cookies.sealed("x" * TOKEN_CHARS_MAX, NOW_MS)) < 4096, "browsers keep it"


def test_the_key_comes_from_its_file_or_is_drawn(tmp_path: Path) -> None:
    path, key = tmp_path / "key", bytes(range(KEY_BYTES))
    path.write_bytes(key)
    assert key_of(str(path), os.urandom) == key
    path.write_text(key.hex() + "\n")
    assert key_of(str(path), os.urandom) == key
    assert key_of("", os.urandom) != key_of("", os.urandom)
    for wrong in (b"", b"short", key.hex().encode()[:-2], b"\xff" * 33):
        path.write_bytes(wrong)
        with pytest.raises(InvalidConfig, match="openssl rand -hex 32"):
            key_of(str(path), os.urandom)
    with pytest.raises(InvalidConfig, match="console_key_file"):
        key_of(str(tmp_path / "none"), os.urandom)
    with pytest.raises(InvalidConfig, match="is given a key itself") as found:
        key_of(key.hex(), os.urandom)
    assert key.hex() not in str(found.value)


def test_a_key_that_others_may_read_is_told_to_operators(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(KEY_BYTES))
    for mode, warned in ((0o600, False), (0o640, True), (0o604, True)):
        path.chmod(mode)
        caplog.clear()
        key_of(str(path), os.urandom)
        assert ("other users of this machine may read the key" in caplog.text) is warned, oct(mode)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"console": "yes"}, "one of off, read, write"),
        ({"console": "read", "host": "0.0.0.0"}, "needs public_urls"),
        ({"console": "read", "public_urls": "http://mq.example.com"}, "must be https"),
        ({"console": "read", "public_urls": "https://mq.example.com/console"}, "is no origin"),
        ({"console": "read", "public_urls": "https://MQ.example.com"}, "in lower case"),
        ({"console": "read", "public_urls": "https://mq.example.com:443"}, "without the scheme's own port"),
        ({"cors_origins": "http://app.example.com:80"}, "without the scheme's own port"),
    ],
)
def test_settings_that_would_not_be_safe_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        GatewaySettings(**given)


def test_a_console_answers_only_for_its_own_names() -> None:
    assert hosts_of(GatewaySettings()) == ()
    assert hosts_of(GatewaySettings(console="read")) == ("localhost", "127.0.0.1", "[::1]")
    public = GatewaySettings(console="read", host="0.0.0.0", public_urls="https://mq.example.com:8443")
    assert hosts_of(public) == ("mq.example.com",)
    both = GatewaySettings(console="read", host="0.0.0.0", hosts="mq.internal", public_urls="https://mq.example.com")
    assert hosts_of(both) == ("mq.internal", "mq.example.com"), "browsers reach it by the name that operators gave"


async def test_without_a_console_there_is_no_page_and_a_cookie_means_nothing() -> None:
    async with world(rules=True) as at:
        assert (await at.http.get("/console")).status_code == 404
        assert await code(at, "GET", "/v1/topics", READ | {"Cookie": f"{COOKIE}=x"}) == (401, "UNAUTHENTICATED")


async def test_every_file_comes_with_the_policy() -> None:
    async with world(console="read", rules=True) as at:
        for name in ("console", *(f"console/{file}" for file in FILES[1:])):
            answer = await at.http.get(f"/{name}")
            assert answer.status_code == 200
            policy = answer.headers["Content-Security-Policy"]
            for part in (
                "default-src 'none'",
                "script-src 'self'",
                "require-trusted-types-for 'script'",
                "frame-ancestors 'none'",
            ):
                assert part in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        page = (await at.http.get("/console")).text
        assert not re.search(r"https?://|<script>|style=", page), "nothing inline, and from no other host"
        assert "/console" not in (await at.http.get("/openapi.json")).text


async def test_sign_in_read_and_sign_out() -> None:
    async with world(console="write", rules=True) as at:
        root, alice = await at.user("root"), await at.user("alice", "describe t")
        assert await code(at, "GET", "/console/session", READ) == (401, "UNAUTHENTICATED")
        assert await code(at, "POST", "/console/session", marked(at) | {"Authorization": "Bearer lmq_wrong"}) == (
            401,
            "UNAUTHENTICATED",
        )
        value = await sign_in(at, alice)
        assert alice["Authorization"].removeprefix("Bearer ") not in value
        cookie = READ | {"Cookie": f"other=1; {COOKIE}={value}"}
        session = (await at.http.get("/console/session", headers=cookie)).json()
        assert abs(session.pop("now_ms") - time.time_ns() // 1_000_000) < 120_000
        assert session == {"principal": "user:alice", "open": False, "write": True, "cluster": False}
        rights = (await at.http.get("/console/rights?ask=describe:t,alter:t,cluster", headers=cookie)).json()
        assert rights["rights"] == {"describe:t": True, "alter:t": False, "cluster": False}
        other = READ | {"Cookie": f"{COOKIE}={await sign_in(at, root)}"}
        assert (await at.http.get("/console/session", headers=other)).json()["cluster"] is True
        left = await at.http.delete("/console/session", headers=marked(at))
        assert left.headers["Set-Cookie"].startswith(f"{COOKIE}=; ")
        assert "Max-Age=0" in left.headers["Set-Cookie"]


async def test_a_cookie_counts_only_from_the_console_itself() -> None:
    async with world(console="write", rules=True) as at:
        value = await sign_in(at, await at.user("root"))
        cookie = {"Cookie": f"{COOKIE}={value}"}
        own = marked(at) | cookie
        body = {"json": {"name": "t"}}
        for headers in (
            cookie,
            cookie | {"Sec-Fetch-Site": "none"},
            cookie | {"Sec-Fetch-Site": "same-site"},
            cookie | {"Sec-Fetch-Site": "cross-site"},
        ):
            assert await code(at, "GET", "/v1/topics", headers) == (403, "FOREIGN_ORIGIN"), headers
        for missing in ("LedgerMQ-Console", "Origin", "Sec-Fetch-Site"):
            headers = {name: value for name, value in own.items() if name != missing}
            assert await code(at, "POST", "/v1/topics", headers, **body) == (403, "FOREIGN_ORIGIN"), missing
        for origin in ("https://evil.example", "http://127.0.0.1:1", "null"):
            assert await code(at, "POST", "/v1/topics", own | {"Origin": origin}, **body) == (403, "FOREIGN_ORIGIN")
            for method in ("POST", "DELETE"):
                assert (await code(at, method, "/console/session", own | {"Origin": origin}))[0] == 403
        both = READ | cookie | await at.user("alice")
        assert await code(at, "GET", "/v1/topics", both) == (400, "MALFORMED")
        twice = READ | {"Cookie": f"{COOKIE}={value}; {COOKIE}=planted"}
        assert await code(at, "GET", "/v1/topics", twice) == (400, "MALFORMED")
        assert (await at.http.get("/v1/topics", headers=READ | cookie | {"Host": "evil.example"})).status_code == 421
        assert await code(at, "POST", "/v1/topics", own, **body) == (201, "")


async def test_no_cookie_changes_rules_tokens_or_quotas() -> None:
    async with world(console="write", rules=True) as at:
        own = marked(at) | {"Cookie": f"{COOKIE}={await sign_in(at, await at.user('root'))}"}
        tried = 0
        for route in at.gateway.routes.table:
            if route.changes and ("/access/" in route.path or "/quotas" in route.path):
                path = re.sub(r"\{\w+\}", "x", route.path)
                body = {"json": {}} if route.body else {}
                assert await code(at, route.method, path, own, **body) == (403, "NOT_BY_COOKIE"), route.path
                tried += 1
        assert tried == 5
        assert (await at.http.get("/v1/access/rules", headers=READ | {"Cookie": own["Cookie"]})).status_code == 200


async def test_a_console_that_reads_changes_nothing() -> None:
    async with world(console="read", rules=True) as at:
        own = marked(at) | {"Cookie": f"{COOKIE}={await sign_in(at, await at.user('root'))}"}
        for route in at.gateway.routes.table:
            if route.changes and route.by_cookie and not route.public:
                path = re.sub(r"\{\w+\}", "1", route.path)
                required = "&".join(f"{each.name}=1" for each in route.parameters if each.required)
                body = {"json": {}} if route.body else {}
                answer = await code(at, route.method, f"{path}?{required}", own, **body)
                assert answer == (403, "READ_ONLY"), route.path


async def test_a_revoked_token_ends_the_session() -> None:
    async with world(console="read", rules=True) as at:
        alice = await at.user("alice", "consume t")
        cookie = READ | {"Cookie": f"{COOKIE}={await sign_in(at, alice)}"}
        root = await at.user("root")
        await at.http.post("/v1/topics", json={"name": "t"}, headers=root)
        assert (await at.http.get("/v1/topics/t/offsets", headers=cookie)).status_code in (200, 403)
        tokens = (await at.http.get("/v1/access/tokens", headers=root)).json()["tokens"]
        [mine] = [each["token_id"] for each in tokens if each["user"] == "alice"]
        await at.http.delete(f"/v1/access/tokens/{mine}", headers=root)
        for _ in range(100):
            if (status := (await at.http.get("/console/session", headers=cookie)).status_code) == 401:
                break
        assert status == 401


async def test_two_sessions_of_one_gateway_are_never_mixed() -> None:
    async with world(console="read", rules=True) as at:
        root = await at.user("root")
        for name in ("mine", "yours"):
            await at.http.post("/v1/topics", json={"name": name}, headers=root)
        cookies = {
            user: READ | {"Cookie": f"{COOKIE}={await sign_in(at, await at.user(user, f'describe {name}'))}"}
            for user, name in (("alice", "mine"), ("bob", "yours"))
        }
        for _ in range(3):
            for user, name in (("alice", "mine"), ("bob", "yours")):
                found = (await at.http.get("/v1/topics", headers=cookies[user])).json()["topics"]
                assert [each["name"] for each in found] == [name]


async def test_an_open_cluster_needs_no_cookie() -> None:
    async with world(console="write") as at:
        await topic(at)
        await produce(at, "t", {"value": "a"})
        session = (await at.http.get("/console/session", headers=READ)).json()
        assert abs(session.pop("now_ms") - time.time_ns() // 1_000_000) < 120_000
        assert session == {"principal": "anonymous", "open": True, "write": True, "cluster": True}
        foreign = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
        assert await code(at, "DELETE", "/v1/topics/t", foreign) == (403, "FOREIGN_ORIGIN")


async def test_a_link_of_another_site_opens_a_page_and_nothing_else() -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with world(console="write") as at:
        for path in ("/console", "/docs"):
            assert (await at.http.get(path, headers=link)).status_code == 200, "it is in a chat, a ticket, an alert"
        for headers in (
            link | {"Sec-Fetch-Dest": "iframe"},
            link | {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
            link | {"Origin": "https://evil.example"},
        ):
            assert await code(at, "GET", "/console", headers) == (403, "FOREIGN_ORIGIN"), headers
        for path in ("/v1/topics", "/console/session", "/console/rights?ask=cluster"):
            assert await code(at, "GET", path, link) == (403, "FOREIGN_ORIGIN"), path
        assert await code(at, "DELETE", "/console/session", link) == (403, "FOREIGN_ORIGIN")


async def test_a_console_waits_in_the_turn_of_its_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy all browsers come from one host, and so do strangers with wrong tokens."""
    async with world(console="read", rules=True) as at:
        cookie = {"Cookie": f"{COOKIE}={await sign_in(at, await at.user('alice', 'describe *'))}"}
        turns: list[str] = []
        begin = at.gateway.service.turns.begin

        def noted(who: str, places: int, wait_s: float) -> Any:
            turns.append(who)
            return begin(who, places, wait_s)

        monkeypatch.setattr(at.gateway.service.turns, "begin", noted)
        twice = {"Cookie": f"{cookie['Cookie']}; {cookie['Cookie']}"}
        for headers in (cookie, {"Cookie": f"{COOKIE}=planted"}, twice):
            await at.http.get("/v1/topics", headers=READ | headers)
        assert turns == ["user:alice", "host 127.0.0.1", "host 127.0.0.1"]


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
async def test_a_session_ends_by_the_brokers_time_also_at_a_gateway_that_has_just_started(
    tmp_path: Path, ahead_s: float
) -> None:
    """Its machine's clock counted until its first caller was admitted: all had to sign in again, or none had to."""
    machine = Sources(lambda: time.time_ns() // 1000 + round(ahead_s * 1e6))
    key = tmp_path / "console.key"
    key.write_bytes(os.urandom(KEY_BYTES))
    key.chmod(0o600)
    elsewhere, now_ms = Cookies(key.read_bytes(), os.urandom), time.time_ns() // 1_000_000
    for age_s, expected in ((60, 200), (LASTS_S + 60, 401)):
        async with world(console="read", rules=True, machine=machine, console_key_file=str(key)) as at:
            token = (await at.user("alice", "describe *"))["Authorization"].removeprefix("Bearer ")
            sealed = elsewhere.sealed(token, now_ms - age_s * 1000).partition(";")[0]
            for _ in range(2):
                assert (await at.http.get("/v1/topics", headers=READ | {"Cookie": sealed})).status_code == expected
