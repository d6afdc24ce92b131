"""Refuse requests by their line and headers alone, before any route is looked for: pure.

Targets are taken as they were sent. A percent sign, an empty segment, "." or ".." in a path means one thing to a
proxy and another to a server, so none is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

from ledgermq.protocol.naming.tokens import BEARER, CREDENTIAL_CHARS_MAX
from ledgermq_gateway.http.problems import Problem

ONCE = (
    "host",
    "authorization",
    "content-type",
    "content-encoding",
    "content-length",
    "cookie",
    "idempotency-key",
    "last-event-id",
    "origin",
    "sec-fetch-site",
    "accept",
    "ledgermq-key",
    "ledgermq-tag",
)
"""Headers of which a second one is refused: a proxy may judge by one, and this server by the other."""
QUERY_MAX = 100
_SEGMENT = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@-]+\Z")
_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_TOKEN = re.compile(r"[\x21-\x7e]+\Z")

Headers = Mapping[str, str]


def checked_headers(pairs: Iterable[tuple[str, str]]) -> Headers:
    """Return headers by lower-case name, the first of each. Raises Problem for a repeated one that decides."""
    found: dict[str, str] = {}
    for name, value in pairs:
        lower = name.lower()
        if lower in found:
            if lower in ONCE:
                raise Problem("MALFORMED", f"the header {lower} is given twice: give it once")
            continue
        found[lower] = value.strip()
    return found


def request_id_of(headers: Headers, drawn: str) -> str:
    """Return the id that the request gave itself, else the one that was drawn for it."""
    given = headers.get("ledgermq-request-id", "")
    return given if _REQUEST_ID.match(given) else drawn


def path_of(target: str) -> tuple[str, str]:
    """Return path and query of a request target. Raises Problem."""
    if not target.startswith("/"):
        raise Problem("OTHER_HOST", "the request target must be a path that begins with a slash")
    path, _, query = target.partition("?")
    if path == "/":
        return path, query
    for segment in path[1:].split("/"):
        if segment in ("", ".", "..") or not _SEGMENT.match(segment):
            raise Problem(
                "MALFORMED",
                "the path has an empty segment, '.' or '..', a percent sign, or a sign that must be escaped;"
                " names of this service need none",
            )
    return path, query


def query_of(query: str) -> dict[str, str]:
    """Return the parameters of a query. Raises Problem for a repeated one, and for what is no UTF-8."""
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_MAX) if query else []
    except ValueError:
        raise Problem("MALFORMED", "the query cannot be read") from None
    for name, value in pairs:
        if name in found:
            raise Problem("INVALID_REQUEST", f"the parameter {name[:40]!r} is given twice")
        found[name] = value
    return found


def check_host(headers: Headers, hosts: Sequence[str]) -> None:
    """Refuse a request that was meant for another host: a page of another site whose name was bound to this address.
    `hosts`: names that count; empty: all. Raises Problem.
    """
    if "host" not in headers:
        raise Problem("MALFORMED", "the request has no Host header")
    if hosts and _name(headers["host"]) not in hosts:
        raise Problem("OTHER_HOST", "this gateway does not answer for the host of this request (setting hosts)")


def _name(host: str) -> str:
    """Return the name in a Host header, without a port."""
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def check_origin(
    headers: Headers, hosts: Sequence[str], cors_origins: Sequence[str], own_origins: Sequence[str] = ()
) -> str:
    """Refuse a request that a page of another site makes through a browser. Return the origin that may read the
    answer, "" for none. `own_origins`: of this gateway, besides those that `hosts` say. Raises Problem.
    """
    origin = headers.get("origin", "")
    if origin and origin in cors_origins:
        return origin
    site = headers.get("sec-fetch-site", "none")
    is_own = origin in own_origins or (bool(hosts) and origin.partition("://")[2] == headers.get("host", ""))
    if site not in ("same-origin", "none") or (origin and not is_own):
        raise Problem(
            "FOREIGN_ORIGIN", "a page of another site may not call this gateway (setting cors_origins allows some)"
        )
    return ""


def is_followed_link(headers: Headers) -> bool:
    """Return whether a browser opens the target in a window, as by a link or a bookmark. No page of another site sees
    the answer then.
    """
    is_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_page and "origin" not in headers


class Proof(NamedTuple):
    """What a request proves itself by: a token, "" for none. `ends_ms`: when the session is over that it comes from,
    0: it comes from none.
    """

    token: str
    ends_ms: int = 0

    def check(self, now_ms: int) -> None:
        """Raise Problem (401) for a session that is over."""
        if self.ends_ms and self.ends_ms <= now_ms:
            raise Problem("UNAUTHENTICATED", "sign in again: the session is over", status=401)


def token_of(headers: Headers) -> str:
    """Return the token that the request carries, "" for none. Raises Problem, which does not repeat it."""
    given = headers.get("authorization")
    if given is None:
        return ""
    token = given[len(BEARER) :].strip()
    if given[: len(BEARER)].lower() != BEARER.lower() or not _TOKEN.match(token):
        raise Problem("UNAUTHENTICATED", "the header authorization must be: Bearer TOKEN", status=401)
    if len(token) + len(BEARER) > CREDENTIAL_CHARS_MAX:
        raise Problem("UNAUTHENTICATED", f"a credential has at most {CREDENTIAL_CHARS_MAX} characters", status=401)
    return token


def media_type(header: str) -> str:
    """Return the type of a Content-Type header without its parameters. Raises Problem for a charset that is not
    UTF-8.
    """
    kind, _, parameters = header.partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "us-ascii"):
            raise Problem("UNSUPPORTED_MEDIA_TYPE", "text must be UTF-8: leave the charset out")
    return kind.strip().lower()


def accepted(header: str, offered: Sequence[str]) -> str:
    """Return the first of `offered` that an Accept header allows; parameters such as q are not weighed, except
    q=0. Raises Problem.
    """
    if not header:
        return offered[0]
    wanted = [_range(part) for part in header.split(",")]
    ranges = [kind for kind, weight in wanted if weight]
    for kind in ranges:
        for offer in offered:
            if kind == offer or kind == "*/*" or (kind.endswith("/*") and offer.startswith(kind[:-1])):
                return offer
    raise Problem("NOT_ACCEPTABLE", f"this resource comes as {', '.join(offered)}")


def _range(part: str) -> tuple[str, bool]:
    kind, *parameters = (each.strip().lower() for each in part.split(";"))
    return kind, not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
