"""The job as users start it: a script for spark-submit, and an engine of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq_spark import job
from tests.stores.backends import file_store, seeded_sources
from tests.worlds.roots import Root, read_parquet_rows

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]


SCRIPT = str(REPOSITORY / "spark" / "job.py")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=200, cwd="/", check=False
    )


def _run_with_java_at(java_home: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = os.environ | {"JAVA_HOME": java_home}
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_script_compacts_a_root_and_says_what_it_did(tmp_path: Path) -> None:
    async with file_store(tmp_path / "a root") as store:
        root = await Root.open(store, seeded_sources(), bundles=3)
        await root.create_topic("t", partitions=2)
        await root.create_topic("u", bundle=2)
        await root.produce("t", (0, [b"a", b"b"]), (1, [b"c"]))
        await root.produce("u", (0, [b"d"]))
        done = _run(store.url, "1", "--output", "json")
        assert done.returncode == 0, done.stderr
        assert "bundle 1 plan 1: 2 of 2 files, 3 of 3 records" in done.stderr
        told = json.loads(done.stdout)
        assert (told["engine"], told["records"], told["files"], told["records_left"], told["findings"]) == (
            "spark",
            3,
            2,
            0,
            [],
        )
        assert [(row["bundle"], row["plan"], row["records"]) for row in told["round_list"]] == [(1, 1, 3)]
        rows = await read_parquet_rows(store)
        assert {part: list(found.values()) for part, found in rows.items()} == {
            ("t", 0): [b"a", b"b"],
            ("t", 1): [b"c"],
        }, "bundle 1 only"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["file:///x", "one"], ["file:///x", "--output", "xml"]])
def test_wrong_usage_is_told_without_starting_spark(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(arguments) == 2
    assert "spark-submit spark/job.py ROOT" in capsys.readouterr().err


def test_an_interval_that_is_none_is_told_without_starting_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["file:///x", "--every", "often"]) == 2
    assert "--every 'often': give a number and its unit" in capsys.readouterr().err


@pytest.mark.timeout(240)
def test_a_root_without_a_cluster_has_the_exit_status_of_the_command_line(tmp_path: Path) -> None:
    done = _run(tmp_path.as_uri())
    assert (done.returncode, "there is no cluster" in done.stderr) == (4, True)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("begin", [(SCRIPT,), ("-m", "ledgermq.cli.main", "compact", "--engine", "spark")])
async def test_no_java_is_told_as_what_it_is(tmp_path: Path, begin: tuple[str, ...]) -> None:
    async with file_store(tmp_path) as store:
        await Root.open(store, seeded_sources())
    nowhere = str(tmp_path / "no-java")
    done = _run_with_java_at(nowhere, *begin, str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"Spark did not start: it needs Java 17 or newer, and JAVA_HOME is '{nowhere}'" in done.stderr
