"""The Spark blocks of README.md and docs/ run twice as they stand; and what they say of Spark's
plain reader is so.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import ledgermq
from ledgermq.cli.main import build
from tests.docs.pages import ALL_BLOCKS, CLONE
from tests.e2e.processes import BrokerProcesses
from tests.spark.starting import NOT_STARTED, TRIES_MAX
from tests.unit.parquet.test_flipped_bits import end_of_pages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RUNS = 2


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, which is the current one: paths in the pages are relative."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def broker(here: Path) -> Iterator[str]:
    with BrokerProcesses(here.parent, str(here / "ledgermq-data")) as brokers:
        yield brokers.start("--auto-create-topics").address


async def fill(address: str) -> None:
    async with ledgermq.connect(address) as client:
        for topic in ("flights", "copy", "events"):
            await client.create_topic(topic, partitions=2)
        async with client.producer() as producer:
            for number in range(100):
                producer.send("flights", f"flight {number}", key=str(number))
                producer.send("events", f"event {number}", key=str(number))
            await producer.flush()


def compact(root: Path) -> None:
    assert CliRunner().invoke(build(), ["compact", str(root)]).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("pages", [["README.md"], ["tutorial.md"], ["retention.md", "spark.md"]], ids="+".join)
def test_the_spark_blocks_run_twice_as_a_script(pages: list[str], here: Path, broker: str) -> None:
    """All of a page, one after another: fragments build on those before them."""
    asyncio.run(fill(broker))
    compact(here / "ledgermq-data")
    blocks = [block for block in ALL_BLOCKS if block.page.name in pages and block.needs_spark and not block.not_run]
    script = here / "job.py"
    text = GIVEN if "spark.md" in pages else ""
    text += "".join(f"# {block.place}\n{block.text}" for block in blocks)
    script.write_text(text.replace("localhost:9650", broker))
    for _ in range(RUNS):
        run(script)
    if pages == ["README.md"]:  # its stream has copied everything that was there, once
        assert asyncio.run(count(broker, "copy")) == 100


def test_no_spark_block_is_left_out() -> None:
    assert {block.page.name for block in ALL_BLOCKS if block.needs_spark and not block.not_run} == {
        "README.md",
        "retention.md",
        "spark.md",
        "tutorial.md",
    }


GIVEN = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
root = "ledgermq-data"
rows = spark.createDataFrame([(b"1", b"a row")], "key BINARY, value BINARY")

def store(frame, number):
    frame.count()

"""
"""What docs/spark.md and docs/retention.md take for granted."""


def run(script: Path) -> None:
    """As `python job.py`; again where Spark did not wait for its own process to start."""
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    for _ in range(TRIES_MAX):
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, cwd=script.parent, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        if done.returncode == 0 or NOT_STARTED not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-5000:]


async def count(address: str, topic: str) -> int:
    async with ledgermq.connect(address) as client:
        begin, end = [await client.list_offsets(topic, at) for at in ("earliest", "latest")]
    return sum(end.values()) - sum(begin.values())


@pytest.mark.slow
def test_no_flipped_bit_gives_wrong_rows_by_the_documented_read(here: Path, spark: SparkSession) -> None:
    """Without the option some are wrong."""
    asyncio.run(one_file(here))
    (file,) = (here / "ledgermq-data" / "parquet").rglob("*.parquet")
    good, pages = file.read_bytes(), end_of_pages(file)
    (call,) = (found[1] for block in ALL_BLOCKS if (found := re.search(r"^by_spark = (.*)$", block.text, re.MULTILINE)))
    unchecked = 'spark.read.parquet("ledgermq-data/parquet")'
    names: dict[str, Any] = {"spark": spark}
    absolute = str(here / "ledgermq-data")  # the JVM has a current folder of its own
    call, unchecked = (text.replace("ledgermq-data", absolute) for text in (call, unchecked))
    expected = eval(call, names).collect()
    assert expected == eval(unchecked, names).collect()
    found = {"checked": [0, 0, 0], "unchecked": [0, 0, 0]}
    for bit in range(4 * 8, pages * 8, pages * 8 // 60):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        for name, text in (("checked", call), ("unchecked", unchecked)):
            try:
                found[name][eval(text, names).collect() == expected] += 1
            except Exception:
                found[name][2] += 1
    wrong, _, refused = found["checked"]
    assert (wrong, refused > 30) == (0, True), found
    assert found["unchecked"][0] > 0, found


async def one_file(here: Path) -> None:
    root = (here / "ledgermq-data").as_uri()
    async with ledgermq.connect(root) as client:
        await client.create_topic("flights", partitions=1)
        async with client.producer() as producer:
            for number in range(400):
                producer.send("flights", f"flight {number:05} of many", key=f"carrier {number % 7}")
            await producer.flush()
    await asyncio.to_thread(compact, here / "ledgermq-data")


READS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
def show(flights):
    print(flights.columns, flights.count(), file=sys.stderr, flush=True)
"""


@pytest.mark.slow
def test_a_plain_read_warns_and_the_documented_one_does_not(here: Path) -> None:
    """In a separate process, whose standard error shows what Spark logs."""
    asyncio.run(one_file(here))
    (documented,) = (block.text for block in ALL_BLOCKS if "recursiveFileLookup" in block.text)
    code = f'{READS}show(spark.read.parquet("ledgermq-data/parquet"))\n{documented}show(flights)\n'
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=300, check=True
    )
    plain, columns, silent = done.stderr.rpartition("['key', ")[0].partition("['key', ")
    names = "'key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType', 'headers', 'tag', 'appended'"
    assert done.stderr.count(f"[{names}] 400") == 2
    warnings = [line for line in plain.splitlines() if "COLUMN_ALREADY_EXISTS" in line]
    assert len(warnings) == 1, "docs/spark.md says: once for each read"
    assert " WARN " in warnings[0]
    assert columns
    assert "COLUMN_ALREADY_EXISTS" not in silent


@pytest.mark.slow
def test_spark_names_the_interpreter_that_cannot_load_the_source(here: Path) -> None:
    """The current folder has the package by which Spark finds the source, PYSPARK_PYTHON is not set, and the first
    python3 of PATH has nothing installed.
    """
    bare = here / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=120)
    program = 'spark.read.format("ledgermq").option("root", "nowhere").option("topic", "t").load()'
    code = f"{READS}show({program})"
    java = Path(shutil.which("java") or "/usr/bin/java").parent
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment["PATH"] = f"{bare / 'bin'}:{java}:/usr/bin:/bin"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=CLONE / "spark",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert f"Spark runs the source in {bare}/bin/python3" in done.stderr, done.stderr[-3000:]
    assert "PYSPARK_PYTHON is not set" in done.stderr
