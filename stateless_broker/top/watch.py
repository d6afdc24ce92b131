"""Reads several admin ports again and again: a view of each interval, with the reason why somebody does not answer."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Sequence

from stateless_broker.top.readings import BrokerRow, Reading, View, broker_row, parse, topic_rows

TIMEOUT_S = 3.0
TEXT_BYTES_MAX = 16 << 20


async def watch(addresses: Sequence[str], interval_s: float) -> AsyncIterator[View]:
    """A view of every interval. Who does not answer is in it, with the reason."""
    before = await _read_all(addresses)
    while True:
        await asyncio.sleep(interval_s)
        now = await _read_all(addresses)
        rows, pairs = [], []
        for address in addresses:
            earlier, found = before[address], now[address]
            if isinstance(found, str):
                rows.append(BrokerRow(address, trouble=found))
                continue
            pair = (earlier if isinstance(earlier, Reading) else found, found)
            rows.append(broker_row(address, *pair))
            pairs.append(pair)
        before = now
        yield View(rows, topic_rows(pairs))


async def _read_all(addresses: Sequence[str]) -> dict[str, Reading | str]:
    found = await asyncio.gather(*(asyncio.to_thread(_read, address) for address in addresses))
    at_s = asyncio.get_running_loop().time()
    return {address: _parsed(text, at_s) for address, text in zip(addresses, found, strict=True)}


def _parsed(text: str | OSError, at_s: float) -> Reading | str:
    if isinstance(text, OSError):
        return f"no answer: {text}"
    try:
        return parse(text, at_s)
    except ValueError as error:
        return f"this is no admin port of LedgerMQ: {error}"


def _read(address: str) -> str | OSError:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            text: bytes = answer.read(TEXT_BYTES_MAX)
            return text.decode("utf-8", "replace")
    except OSError as error:
        return error
