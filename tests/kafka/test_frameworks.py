"""Frameworks for Python that speak Kafka work with the Kafka port as they are: FastStream, and Celery with kombu's
transport `confluentkafka`. Each runs in an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs" / "frameworks"
FASTSTREAM = ("faststream[kafka]>=0.7,<0.8",)
CELERY = ("celery>=5.7,<5.8", "kombu[confluentkafka]>=5.7,<5.8")
COUNT = 100
SECONDS_MAX = 300


def command(packages: tuple[str, ...], *words: str) -> list[str]:
    """Return a command that runs in an environment with these packages and no others."""
    uv = [str(Path(sys.executable).with_name("uv")), "run", "--quiet", "--no-project", "--python", sys.executable]
    return [*uv, *(part for package in packages for part in ("--with", package)), *words]


def run(words: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        words, cwd=PROGRAMS, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_faststream_handles_and_publishes(bootstrap: str) -> None:
    said = run(command(FASTSTREAM, "python", "stream_app.py", bootstrap, str(COUNT)), dict(os.environ))
    assert said.splitlines()[-1] == f"{COUNT} {sum(3 * (number % 4) for number in range(COUNT))}"


def test_celery_runs_tasks(bootstrap: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    environment = os.environ | {"KAFKA": bootstrap, "RESULTS": str(results)}
    calls = f"import tasks\nfor number in range({COUNT}):\n    tasks.add.delay(number, number)\n"
    run(command(CELERY, "python", "-c", calls), environment)  # before the worker: also makes the environment
    worker = command(CELERY, "celery", "--app", "tasks", "worker", "--pool", "solo", "--concurrency", "1")
    with (tmp_path / "worker.log").open("w") as log:
        process = subprocess.Popen(worker, cwd=PROGRAMS, env=environment, stdout=log, stderr=log)
        try:
            over_s = time.monotonic() + SECONDS_MAX
            while not results.exists() or len(results.read_text().split()) < COUNT:
                assert process.poll() is None, (tmp_path / "worker.log").read_text()[-2000:]
                assert time.monotonic() < over_s, (tmp_path / "worker.log").read_text()[-2000:]
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait(60)
    assert sorted(map(int, results.read_text().split())) == [2 * number for number in range(COUNT)]
