"""Resources of the gateway itself: health, the OpenAPI document, and the page that shows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html import escape
from typing import Any

import msgspec

from ledgermq_gateway.api.openapi import document
from ledgermq_gateway.api.route import Route
from ledgermq_gateway.http.call import Answer, Call, Handler

_CSP = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


async def get_livez(call: Call) -> Answer:
    return Answer(content_type="text/plain")


def get_readyz(is_ready: Callable[[], bool]) -> Handler:
    async def handler(call: Call) -> Answer:
        return Answer(content_type="text/plain", status=200 if is_ready() else 503)

    return handler


def get_document(routes: Callable[[], tuple[Route, ...]], version: str) -> Handler:
    @cache
    def made() -> bytes:
        return msgspec.json.encode(document(routes(), version))

    async def handler(call: Call) -> Answer:
        return Answer(made())

    return handler


def get_page(routes: Callable[[], tuple[Route, ...]], version: str) -> Handler:
    """Return the handler of /docs: a page of our own, without scripts and without any other host."""

    @cache
    def made() -> bytes:
        return page(document(routes(), version)).encode()

    async def handler(call: Call) -> Answer:
        return Answer(made(), "text/html; charset=utf-8", headers=(("Content-Security-Policy", _CSP),))

    return handler


def page(found: dict[str, Any]) -> str:
    rows = []
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            parameters = "".join(
                f"<li><code>{escape(each['name'])}</code> ({each['in']}) {escape(each.get('description', ''))}"
                for each in operation["parameters"]
            )
            bodies = ", ".join(operation.get("requestBody", {}).get("content", {}))
            body = f"<p>Body: <code>{escape(bodies)}</code>" if bodies else ""
            rows.append(
                f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code>"
                f" {escape(operation['summary'])}</summary><ul>{parameters}</ul>{body}</details>"
            )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>LedgerMQ over HTTP</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>:root{color-scheme:light dark}"
        "body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "details{border-bottom:1px solid #8884;padding:.4rem 0}b{display:inline-block;min-width:4.5rem}</style>"
        f"<h1>LedgerMQ over HTTP</h1><p>{escape(found['info']['description'])}"
        ' The whole document: <a href="/openapi.json">/openapi.json</a>.</p>' + "".join(rows) + "</html>\n"
    )
