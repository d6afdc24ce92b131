"""Calls on a line that several callers share (`Client.as_caller`)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.client.connection.connections import FIRST_RESET_S, CallerConnection, Connections
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import FETCH_ONCE
from tests.virtual_time import virtual


class SlowLine:
    """`ended_s`: when its call was reset."""

    ended_s: float | None = None

    def as_caller(self, credential: str) -> SlowLine:
        return self

    async def fetch_once(self, request: Any) -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            self.ended_s = asyncio.get_running_loop().time()


@pytest.mark.parametrize(("left_after_s", "reset_after_s"), [(0.01, FIRST_RESET_S), (3.0, 3.0)])
@virtual
async def test_a_call_that_is_given_up_at_once_is_not_reset_at_once(left_after_s: float, reset_after_s: float) -> None:
    """Brokers break a line with many early resets, and with it the calls of all other callers."""
    line = SlowLine()
    view = CallerConnection(cast(Connections, SimpleNamespace(at=lambda address: line)), "a:1", "Bearer x")
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(left_after_s):
            await view.ask(FETCH_ONCE, pb.FetchRequest())
    assert asyncio.get_running_loop().time() - began_s < left_after_s + 0.1, "its caller does not wait"
    await asyncio.sleep(10)
    assert line.ended_s is not None
    assert line.ended_s - began_s == pytest.approx(reset_after_s, abs=0.1)
