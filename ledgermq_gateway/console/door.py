"""Which token a request carries: its own header's, or that of the console's cookie. Pure.

A cookie is sent by browsers whether the page wants it or not. So it counts only beside what a page of another site
cannot send, never changes who may do what, and changes nothing where the console only reads.
"""

from __future__ import annotations

from ledgermq_gateway.api.route import Route
from ledgermq_gateway.console.cookies import Cookies, cookie_of
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.http.requests import Headers, Proof, token_of

MARK = "ledgermq-console"
"""A header that only the console sends; a page of another site would need leave for it."""


class ConsoleDoor:
    """`cookies`: None where there is no console; then cookies mean nothing. `may_write`: whether it changes
    anything.
    """

    def __init__(self, cookies: Cookies | None, *, may_write: bool) -> None:
        self.cookies = cookies
        self.may_write = may_write

    def proof(self, headers: Headers, route: Route) -> Proof:
        """Return what a request proves itself by. Raises Problem. Whether a session is over is judged later: the first
        caller's token lets the gateway learn the time.
        """
        cookie = "" if self.cookies is None else cookie_of(headers.get("cookie", ""))
        if not cookie or self.cookies is None:
            return Proof(token_of(headers))
        if "authorization" in headers:
            if not route.by_cookie:
                return Proof(token_of(headers))
            raise Problem("MALFORMED", "a request has the console's cookie or the header Authorization, not both")
        if headers.get("sec-fetch-site") != "same-origin":
            raise Problem("FOREIGN_ORIGIN", "the console's cookie counts only for requests of the console itself")
        if route.changes:
            check_change(headers)
        if not route.by_cookie:
            raise Problem("NOT_BY_COOKIE", "rules, tokens and quotas cannot be changed by the console: send the token")
        if route.changes and not self.may_write:
            raise Problem("READ_ONLY", "this console changes nothing: `ledgermq gateway --console write` lets it")
        return self.cookies.opened(cookie)

    def sealed_token(self, header: str) -> str:
        """Return the token in a Cookie header, "" for none that this gateway has sealed. It only says in whose turn
        the request waits; `proof` judges whether it counts.
        """
        if self.cookies is None:
            return ""
        try:
            cookie = cookie_of(header)
            return self.cookies.opened(cookie).token if cookie else ""
        except Problem:
            return ""


def check_change(headers: Headers) -> None:
    """Raise Problem for a change that the console's page did not ask for. Origins of others are refused before."""
    if headers.get(MARK) != "1" or not headers.get("origin"):
        raise Problem("FOREIGN_ORIGIN", "a change by cookie needs the header LedgerMQ-Console, and an Origin")
