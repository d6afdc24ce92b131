"""Serve the console: its files, signing in and out, and what the caller may do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import msgspec
from msgspec import Struct

from ledgermq_gateway.api.route import Parameter, Route
from ledgermq_gateway.callers import NO_TOKEN
from ledgermq_gateway.console.cookies import ended
from ledgermq_gateway.console.door import ConsoleDoor, check_change
from ledgermq_gateway.http.call import JSON, Answer, Call, Handler
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.http.requests import token_of

TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FILES = ("index.html", "app.js", "app.css", "icon.svg")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SAFE = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
ASKED_MAX = 20


class Session(Struct, kw_only=True):
    """`open`: brokers admit every caller, so there is nothing to sign in with. `write`: whether this console changes
    anything. `cluster`: whether the caller has the operation. `now_ms`: the brokers' time, by which pages count ages.
    """

    principal: str
    open: bool
    write: bool
    cluster: bool
    now_ms: int


class Rights(Struct, kw_only=True):
    """By `operation:name`, as asked."""

    rights: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Console:
    door: ConsoleDoor

    def routes(self) -> list[Route]:
        session = "/console/session"
        return [
            _file("/console", "index.html"),
            *(_file(f"/console/{name}", name) for name in FILES[1:]),
            Route("GET", session, self.get_session, "Who is signed in.", answers={JSON: Session}),
            Route(
                "POST",
                session,
                self.sign_in,
                "Sign in: seal the token of the header Authorization in a cookie.",
                answers={JSON: Session},
                by_cookie=False,
            ),
            Route("DELETE", session, sign_out, "Sign out.", status=204, public=True),
            Route(
                "GET",
                "/console/rights",
                get_rights,
                "What the caller may do.",
                (
                    Parameter(
                        "ask",
                        f"At most {ASKED_MAX} of operation:name, with commas between.",
                        {"type": "string"},
                        required=True,
                    ),
                ),
                answers={JSON: Rights},
            ),
        ]

    async def get_session(self, call: Call) -> Answer:
        return Answer(msgspec.json.encode(await self._session(call)))

    async def sign_in(self, call: Call) -> Answer:
        """A broker has admitted the token before."""
        check_change(call.headers)
        assert self.door.cookies is not None
        token = token_of(call.headers)
        if not token or token == NO_TOKEN:
            raise Problem("UNAUTHENTICATED", "give a token", status=401)
        sealed = self.door.cookies.sealed(token, call.service.sources.now_ms())
        return Answer(msgspec.json.encode(await self._session(call)), headers=(("Set-Cookie", sealed),))

    async def _session(self, call: Call) -> Session:
        is_open = call.caller.is_shared
        cluster = is_open or (await call.caller.client.access.test("cluster")).allowed
        return Session(
            principal=call.caller.principal,
            open=is_open,
            write=self.door.may_write,
            cluster=cluster,
            now_ms=call.service.sources.now_ms(),
        )


async def sign_out(call: Call) -> Answer:
    check_change(call.headers)
    return Answer(status=204, headers=(("Set-Cookie", ended()),))


async def get_rights(call: Call) -> Answer:
    asked = [each for each in call.query["ask"].split(",") if each]
    if len(asked) > ASKED_MAX:
        raise Problem("INVALID_REQUEST", f"ask for {ASKED_MAX} rights at most")

    async def may(each: str) -> bool:
        operation, _, name = each.partition(":")
        return call.caller.is_shared or (await call.caller.client.access.test(operation, name)).allowed

    found = await asyncio.gather(*map(may, asked))
    return Answer(msgspec.json.encode(Rights(rights=dict(zip(asked, found, strict=True)))))


def _file(path: str, name: str) -> Route:
    kind = TYPES[name.rpartition(".")[2]]
    return Route(
        "GET",
        path,
        _served(_contents()[name], kind),
        "The console.",
        answers={kind.partition(";")[0]: None},
        public=True,
    )


def _served(content: bytes, kind: str) -> Handler:
    async def handler(call: Call) -> Answer:
        return Answer(content, kind, headers=SAFE)

    return handler


def _contents() -> Mapping[str, bytes]:
    folder = files("ledgermq_gateway") / "static"
    return {name: (folder / name).read_bytes() for name in FILES}
