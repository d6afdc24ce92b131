"""`ledgermq compact --every` as a process: rounds by the topics' settings, logged line by line,
until SIGTERM; also beside rivals.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset

from tests.stores.backends import file_store, seeded_sources
from tests.waiting import wait_until
from tests.worlds.roots import Root

STARTED = "service works on root"


@contextmanager
def service(root: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ledgermq.cli.main", "compact", root, "--every", "200ms", *arguments]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_two_services_compact_what_is_due_and_end_when_they_are_asked_to(tmp_path: Path) -> None:
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, seeded_sources())
        await root.create_topic("now", parquet_max_lag_ms="0")
        await root.create_topic("later", parquet_max_lag_ms=str(10**14))
        logs = [tmp_path / "one.log", tmp_path / "other.log"]
        with (
            service(store.url, logs[0], "--output", "json") as one,
            service(store.url, logs[1], "--output", "json") as other,
        ):
            for i in range(5):
                await root.produce("now", (0, [b"%d" % i]))
                await root.produce("later", (0, [b"x"]))
            wait_until(lambda: rows(tmp_path) == 5 and all(STARTED in log.read_text() for log in logs))
            one.send_signal(signal.SIGTERM)
            other.send_signal(signal.SIGINT)
            outputs = [process.communicate(timeout=120) for process in (one, other)]
            assert [process.returncode for process in (one, other)] == [0, 0], outputs
    told = [json.loads(line) for output, _ in outputs for line in output.splitlines()]
    finished = [each for each in told if each["event"] == "round"]
    assert sum(each["records"] for each in finished) == 5
    assert all(each["segment_bytes"] > 0 and each["parquet_bytes"] > 0 for each in finished)
    left = [each for each in told if each["event"] == "left"]
    assert left[-1]["records_left"] >= 1
    assert left[-1]["oldest_left_s"] is not None
    assert not any("Traceback" in log.read_text() for log in logs)


def rows(folder: Path) -> int:
    parquet = folder / "root" / "parquet"
    try:
        return pyarrow.dataset.dataset(parquet).count_rows() if parquet.exists() else 0
    except OSError:  # the listing met a folder that went just then
        return 0


def test_an_interval_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ledgermq.cli.main", "compact", str(tmp_path), "--every", "often"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "give a number and its unit" in done.stderr
