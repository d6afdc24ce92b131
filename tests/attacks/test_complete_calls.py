"""Complete, allowed calls of one principal at full speed delay its own calls: at a real broker with rules, by another
program.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from bench.attacker import OWN_TOPIC
from tests.attacks.cluster import SEND_S_MAX, attacked

pytestmark = pytest.mark.slow
ATTACK_S = 8.0


@pytest.mark.parametrize("kind", ["calls", "frames", "woken"])
async def test_complete_calls_delay_their_own_caller(tmp_path: Path, kind: str) -> None:
    """500 calls at once on five connections, fifty streams of small batches, or 900 streams that wait for records and
    wake at each append.
    """
    async with attacked(tmp_path) as at:
        async with at.client("mallory") as mallory:
            await mallory.create_topic(OWN_TOPIC, 1)
        options = ["--token", at.tokens["mallory"], "--seconds", str(ATTACK_S + 3)]
        command = [sys.executable, "-m", "bench.attacker", kind, at.broker.address, *options]
        flood = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        took_s: dict[str, list[float]] = {"records": [], "calls": []}

        async def timed(what: str, call: object) -> None:
            begun = time.monotonic()
            await call  # type: ignore[misc]
            took_s[what].append(time.monotonic() - begun)

        try:
            assert flood.stdout is not None
            await flood.stdout.readline()
            await asyncio.sleep(1)
            async with at.client("victim") as victim, victim.producer() as producer:
                end = time.monotonic() + ATTACK_S
                while time.monotonic() < end:
                    await timed("records", producer.send("orders", b"x"))
                    await timed("calls", victim.list_offsets("orders"))
                    await asyncio.sleep(0.02)
            for what, found in took_s.items():
                found.sort()
                said = f"{kind}: {len(found)} {what}, p50 {found[len(found) // 2]:.3f} s, longest {found[-1]:.3f} s"
                print(said)
                assert found[-1] < SEND_S_MAX, said
        finally:
            if flood.returncode is None:
                flood.kill()
            await flood.wait()
