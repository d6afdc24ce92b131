"""The port for Kafka clients of a real broker, attacked by a principal with rights on its own names only, and by
strangers: what others get meanwhile, and the memory that the broker takes. With rules, the same over TLS, and with
security open, where hosts are what principals are with rules.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.attacks.cluster import SEND_S_MAX, Attacked, attacked
from tests.attacks.kafka_flood import KINDS, OWN, KafkaFlood, frame, m
from tests.attacks.kafka_flood import METADATA as METADATA_API
from tests.waiting import until

pytestmark = pytest.mark.slow
ATTACK_S = 8.0
HOSTILE_HOST = "127.0.0.66"
"""Where rules do not count, its host is all by which a caller is known."""
OPTIONS = ("--kafka-port", "0", "--log-format", "json")
MEMORY_MAX = 900_000_000
"""Above what it has before: 512 MB of requests (`ARRIVING_BYTES_MAX`, `produce_memory_bytes_max`) and their copies."""
MEDIAN_S_MAX = 5.0


async def kafka_address(at: Attacked) -> str:
    await until(lambda: "Kafka port open" in at.broker.text())
    found = re.search(r'"advertised": ?"([^"]+)"', at.broker.text())
    assert found is not None
    return f"127.0.0.1:{found[1].rpartition(':')[2]}"


class KafkaVictim(KafkaFlood):
    """A well-behaved program on one connection."""

    async def calls(self, took_s: list[float]) -> None:
        reader, writer = await self.connect()
        await self.prove(reader, writer)
        wanted = frame(METADATA_API, 9, m.MetadataRequest(topics=[m.MetadataRequestTopic(name="orders")]))
        while time.monotonic() < self._end_s:
            begun = time.monotonic()
            await self.call(reader, writer, wanted)
            took_s.append(time.monotonic() - begun)
            await asyncio.sleep(0.05)
        writer.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("port", ["rules", "tls", "open"])
async def test_a_flood_delays_its_own_caller(tmp_path: Path, kind: str, port: str) -> None:
    tls, more = port == "tls", {"tls": ["tls"], "open": [f"from={HOSTILE_HOST}"]}.get(port, [])
    options = (*OPTIONS, *(("--security", "open") if port == "open" else ()))
    async with attacked(tmp_path, *options, with_tls=tls) as at:
        async with at.client("mallory") as mallory:
            await mallory.create_topic(OWN, 1)
        address = await kafka_address(at)
        before = at.rss_bytes()
        command = [
            sys.executable,
            "-m",
            "tests.attacks.kafka_flood",
            kind,
            address,
            str(ATTACK_S + 3),
            at.tokens["mallory"],
            *more,
        ]
        flood = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert flood.stdout is not None
            assert await flood.stdout.readline() == b"warm\n"
            await asyncio.sleep(1)
            native_s: list[float] = []
            kafka_s: list[float] = []
            most = [0]

            async def watch() -> None:
                while True:
                    most[0] = max(most[0], at.rss_bytes() - before)
                    await asyncio.sleep(0.05)

            watching = asyncio.create_task(watch())
            async with at.client("victim") as victim, victim.producer() as producer:
                calls = asyncio.create_task(KafkaVictim(address, ATTACK_S, at.tokens["victim"], tls=tls).calls(kafka_s))
                end = time.monotonic() + ATTACK_S
                while time.monotonic() < end:
                    begun = time.monotonic()
                    await producer.send("orders", b"x")
                    native_s.append(time.monotonic() - begun)
                    await asyncio.sleep(0.02)
                await calls
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            for found in (native_s, kafka_s):
                found.sort()
                median_s, most_s = found[len(found) // 2], found[len(found) * 99 // 100]
                said = f"{kind}: {len(found)} calls, p50 {median_s:.3f} s, p99 {most_s:.3f} s, {most[0] / 1e6:.0f} MB"
                print(said)
                assert found[-1] < SEND_S_MAX, said
                assert found[len(found) // 2] < MEDIAN_S_MAX, said
            assert most[0] < MEMORY_MAX, said
        finally:
            if flood.returncode is None:
                flood.kill()
            await flood.wait()
