"""A job of Flink, in a separate environment, with Flink's connector for Kafka and its transactions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ledgermq
from infra import java, maven
from tests.kafka.nodes import served

pytestmark = [pytest.mark.kafka, pytest.mark.languages, pytest.mark.timeout(1800)]
"""Of `languages`, so that the slow tests do not fetch some 700 MB; `make test-kafka` runs it."""

JOB = Path(__file__).resolve().parents[2] / "examples" / "relays" / "flink_job.py"
LINES = [f"line {number} ä" for number in range(1000)]
SECONDS_MAX = 1500
UV = (str(Path(sys.executable).with_name("uv")), "run", "--quiet", "--no-project", "--python")
PYTHON = str(Path(sys.executable).resolve())
"""The interpreter without the packages of this environment: Flink has others of protobuf."""


async def test_a_job_writes_each_line_once(tmp_path: Path) -> None:
    home = java.installed()
    if home is None:
        pytest.skip(f"there is no Java {java.VERSION_MIN} or newer: `python infra/java.py` installs it")
    (jar,) = maven.jars("flink_kafka").glob("*.jar")
    with served(tmp_path) as node:
        assert node.kafka_address is not None
        async with ledgermq.connect(node.address) as client:
            for topic in ("lines", "lengths"):
                await client.create_topic(topic, 2)
            async with client.producer() as producer:
                await producer.send_many("lines", LINES)
            job = [*UV, PYTHON, "--with", "apache-flink==2.3.0", "python", str(JOB), node.kafka_address, str(jar)]
            done = subprocess.run(  # noqa: ASYNC221  the broker is in another thread
                job,
                env=os.environ | {"JAVA_HOME": str(home)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            found: dict[str, int] = {}
            async with client.consumer("lengths") as consumer:
                while len(found) < len(LINES) and (messages := await consumer.fetch(timeout=60)):
                    for message in messages:
                        row = json.loads(message.value or b"")
                        assert row["line"] not in found
                        found[row["line"]] = row["length"]
                assert not await consumer.fetch(10, timeout=2)
    assert found == {line: len(line) for line in LINES}
