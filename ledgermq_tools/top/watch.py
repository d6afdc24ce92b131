"""Read several admin ports repeatedly: yield a view of each interval, with the reason why a port
does not answer.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from http.client import HTTPException

from ledgermq.errors import InvalidRequest
from ledgermq_broker.settings.brokers import ADMIN_PORT
from ledgermq_tools.top.readings import BrokerRow, Reading, View, broker_row, parse, topic_rows

TEXT_BYTES_MAX = 16 << 20


class NotAdminPort(InvalidRequest):
    """The port answers, but it is not an admin port."""


Found = Reading | str
"""Reading of one admin port; text: why there is none."""


async def watch(
    addresses: Sequence[str], interval_s: float, timeout_s: float, tls: ssl.SSLContext | None = None
) -> AsyncIterator[View]:
    """Yield a view of every interval, with a row for each address; one at once if no port answers.
    `timeout_s`: of one answer. `tls`: None for plain HTTP.

    Raises NotAdminPort if a port is not an admin port, when it is first read.
    """
    before = await _read_all(addresses, timeout_s, tls, is_first=True)
    if not any(isinstance(found, Reading) for found in before.values()):
        yield _view(before, before)
    while True:
        await asyncio.sleep(interval_s)
        now = await _read_all(addresses, timeout_s, tls, is_first=False)
        yield _view(before, now)
        before = now


def _view(before: dict[str, Found], now: dict[str, Found]) -> View:
    rows, pairs = [], []
    for address, found in now.items():
        earlier = before[address]
        if isinstance(found, str):
            rows.append(BrokerRow(address, trouble=found))
            continue
        pair = (earlier if isinstance(earlier, Reading) else found, found)
        rows.append(broker_row(address, *pair))
        pairs.append(pair)
    return View(rows, topic_rows(pairs))


async def _read_all(
    addresses: Sequence[str], timeout_s: float, tls: ssl.SSLContext | None, *, is_first: bool
) -> dict[str, Found]:
    found = await asyncio.gather(*(asyncio.to_thread(_read, address, timeout_s, tls) for address in addresses))
    at_s = asyncio.get_running_loop().time()
    return {
        address: _parsed(address, text, at_s, is_first=is_first) for address, text in zip(addresses, found, strict=True)
    }


def _parsed(address: str, text: str | Exception, at_s: float, *, is_first: bool) -> Found:
    try:
        if isinstance(text, Exception):
            raise text
        return parse(text, at_s)
    except (urllib.error.HTTPError, HTTPException, ValueError) as error:
        if isinstance(error, ConnectionError):
            return "no answer: the connection was closed"
        text = (
            f"{address} is not the admin port of a broker ({_why_none(error)}); the setting admin_port names it, often"
            f" {ADMIN_PORT}"
        )
        if is_first:
            raise NotAdminPort(text) from error
        return text
    except OSError as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return f"no answer: {getattr(reason, 'strerror', None) or reason}"


def _why_none(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"GET /metrics: {error.code} {error.reason}"
    if isinstance(error, ValueError):
        return "GET /metrics: not the text of Prometheus"
    return "it does not speak HTTP; is it the port for clients?"


def _read(address: str, timeout_s: float, tls: ssl.SSLContext | None) -> str | Exception:
    url = f"{'http' if tls is None else 'https'}://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=tls) as answer:
            text: bytes = answer.read(TEXT_BYTES_MAX)
            return text.decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        return error
