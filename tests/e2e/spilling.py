"""Producers with a spill file, cut off from their brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ledgermq
from ledgermq import Spill
from tests.e2e.own_network import OwnNetwork
from tests.waiting import until

SETTINGS: dict[str, Any] = {"delivery_timeout_s": 5, "request_timeout_s": 2}


def spill_below(tmp_path: Path) -> Spill:
    return Spill(tmp_path / "t.spill")


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def state_of(producer: ledgermq.Producer) -> ledgermq.SpillState:
    assert producer.spilled is not None
    return producer.spilled


async def emptied(producer: ledgermq.Producer) -> None:
    await until(lambda: state_of(producer).records == 0, 200)


async def cut_off(own: OwnNetwork, *addresses: str) -> None:
    """And let the client notice."""
    own.cut(*addresses)
    await asyncio.sleep(0.1)
