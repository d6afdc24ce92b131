"""The brokers of a soak: those of the chaos runs, without lines between them and their clients, and
with room to work.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.cluster import SETTINGS, Broker, ChaosCluster, _free_ports

URL_LIFE_MS, PARQUET_MIN_AGE_MS = 5_000, 20_000
GRACE_S = (URL_LIFE_MS + PARQUET_MIN_AGE_MS) / 1000 + 5
FLUSH_AFTER_MS, LOG_START_MS = 10_000, 2_000
"""Timed messages move to ranges sooner than by default, so that a short soak sees it, too."""
CACHE_BYTES = 64_000_000
CHUNK_BYTES = 500_000


@dataclass
class Direct:
    """In place of a line: the broker's own address."""

    address: str


class SoakCluster(ChaosCluster):
    async def prepare_direct(self, count: int) -> None:
        for number, port in enumerate(_free_ports(count)):
            line = Direct(f"127.0.0.1:{port}")
            self.brokers.append(Broker(number, port, line, await self._store.url(f"broker-{number}")))  # type: ignore[arg-type]

    def start(self, broker: Broker, *options: str) -> None:
        settings = SETTINGS | {
            "cache-bytes-max": CACHE_BYTES,
            "checkpoint-slots": 256,
            "constant-chunk-bytes": CHUNK_BYTES,
            "constant-url-life-ms": URL_LIFE_MS,
            "constant-flush-after-ms": FLUSH_AFTER_MS,
            "constant-log-start-ms": LOG_START_MS,
            "constant-parquet-min-age-ms": PARQUET_MIN_AGE_MS,
        }
        broker.wanted = True
        self.starts += 1
        place = ("--port", str(broker.port), "--advertised-address", broker.address, "--broker-id", broker.name)
        flags = [f"--{name}={value}" for name, value in settings.items()]
        command = [*self.command, "broker", broker.url, *place, *flags, "--no-background-compaction", *options]
        broker.child = self._children.spawn(broker.name, command)
