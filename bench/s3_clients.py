"""What S3 clients cost, on a real MinIO: `python -m bench.s3_clients --rounds 5` prints a table and
one JSON line (docs/decisions/0027).

Each client gets a separate process every round, the clients take turns, and all of them stand
behind the same `S3Store`. CPU is that of the client's process, its own threads included; it depends
less on what else runs here than latencies do. aiobotocore is measured if it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from infra import minio
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.s3.location import parse_s3_url
from ledgermq_ledger.object_store.s3.signed_wire import S3Client, SignedWire
from ledgermq_ledger.object_store.s3.store import CLIENTS, S3Store, open_s3
from tests.stores.backends import create_bucket

MIB = 1 << 20
SMALL, LARGE = [bytes(1000)], [os.urandom(MIB) for _ in range(4)]
COUNTS = {"PUT 1 KB": 160, "PUT 4 MiB": 16, "GET 4 MiB": 32, "GET 64 KiB of 4 MiB": 160}
AT_ONCE = (1, 16)
ROUND_S_MAX = 120

Run = dict[str, dict[str, float]]


async def measure(store: ObjectStore) -> Run:
    """Return by operation and concurrency: CPU in µs and latencies in ms per request."""
    sources = Sources()

    def put(buffers: list[bytes]) -> Awaitable[None]:
        return store.put_if_absent(f"bench/{sources.new_id().hex()}", buffers)

    await store.put_if_absent("bench/large", LARGE)
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "PUT 1 KB": lambda: put(SMALL),
        "PUT 4 MiB": lambda: put(LARGE),
        "GET 4 MiB": lambda: store.get("bench/large"),
        "GET 64 KiB of 4 MiB": lambda: store.get_range("bench/large", MIB, 64 << 10),
    }
    return {
        f"{name}, {at_once} at once": await _timed(step, COUNTS[name], at_once)
        for name, step in steps.items()
        for at_once in AT_ONCE
    }


async def _timed(step: Callable[[], Awaitable[object]], count: int, at_once: int) -> dict[str, float]:
    latencies_ms: list[float] = []

    async def worker(requests: int) -> None:
        for _ in range(requests):
            begun_s = time.perf_counter()
            await step()
            latencies_ms.append(1000 * (time.perf_counter() - begun_s))

    await asyncio.gather(*(worker(2) for _ in range(at_once)))  # connections and threads exist before the clock starts
    latencies_ms.clear()
    cpu_s = time.process_time()
    await asyncio.gather(*(worker(count // at_once) for _ in range(at_once)))
    cpu_s = time.process_time() - cpu_s
    latencies_ms.sort()
    done = len(latencies_ms)
    return {"cpu_us": 1e6 * cpu_s / done, "p50_ms": latencies_ms[done // 2], "p99_ms": latencies_ms[done * 99 // 100]}


async def one_client(client: str, root: str) -> Run:
    async with await _open(client, root) as store:
        found = await measure(store)
    found["process"] = {"rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    return found


async def _open(client: str, root: str) -> S3Store:
    if client in CLIENTS:
        return await open_s3(root, client)
    from bench.aiobotocore_wire import open_aiobotocore

    location = parse_s3_url(root)
    return S3Store(location, SignedWire(S3Client(location, 2)), await open_aiobotocore(location))


def run_rounds(rounds: int) -> dict[str, Run]:
    """Return medians over the rounds, by client."""
    clients = [*CLIENTS, *(["aiobotocore"] if find_spec("aiobotocore") else [])]
    found: dict[str, list[Run]] = {client: [] for client in clients}
    with minio.running() as server:
        create_bucket(server, "bench")
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        for number in range(rounds):
            root = f"s3://bench/round-{number}?endpoint={server.endpoint}&region=us-east-1"
            for client in clients if number % 2 == 0 else reversed(clients):
                command = [
                    sys.executable,
                    "-m",
                    "bench.s3_clients",
                    "--one",
                    client,
                    root.replace("round", f"{client}-round"),
                ]
                done = subprocess.run(
                    command, env=os.environ | keys, capture_output=True, text=True, timeout=ROUND_S_MAX, check=True
                )
                found[client].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"round {number} {client:12} {done.stdout}", end="", file=sys.stderr, flush=True)
    return {client: _medians(runs) for client, runs in found.items()}


def _medians(runs: list[Run]) -> Run:
    return {
        what: {figure: round(statistics.median(run[what][figure] for run in runs), 2) for figure in figures}
        for what, figures in runs[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "ROOT"), help="measure one client once, in this process")
    given = parser.parse_args()
    if given.one:
        import uvloop

        print(json.dumps(uvloop.run(one_client(*given.one))))
        return
    found = run_rounds(given.rounds)
    for client, run in found.items():
        for what, figures in run.items():
            print(
                f"{client:12} {what:32} " + "  ".join(f"{name} {value:9.2f}" for name, value in figures.items()),
                file=sys.stderr,
            )
    print(json.dumps({"rounds": given.rounds, "load": os.getloadavg()[0], "clients": found}))


if __name__ == "__main__":
    main()
