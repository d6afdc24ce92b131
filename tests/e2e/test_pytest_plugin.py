"""The pytest plugin in test suites of users: the examples of docs/testing.md, suites with and without
pytest-asyncio, and suites that do not use it. A start of pytest with the broker costs two seconds of
processor time, so suites that may stand side by side run in one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.docs.pages import CLONE, blocks_of

pytest_plugins = ["pytester"]
PLUGIN = "ledgermq_tools.testing.plugin"
ALONE = ("-p", "no:asyncio")
WITH_ASYNCIO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
EXAMPLES = {
    f"test_example_{number}.py": block.text
    for number, block in enumerate(blocks_of(CLONE / "docs" / "testing.md"))
    if block.language == "python"
}

OWN_CLUSTERS = """\
import asyncio, pytest

class TestTopics:
    @pytest.mark.parametrize("name", ["a", "b"])
    async def test_one(self, ledgermq_client, name):
        await ledgermq_client.create_topic(name)
        assert [topic.name for topic in await ledgermq_client.list_topics()] == [name]

def test_time_moves_only_by_waiting(ledgermq_cluster):
    before = ledgermq_cluster.clock.now
    ledgermq_cluster.run(ledgermq_cluster.clock.advance(90))
    assert (ledgermq_cluster.clock.now - before).total_seconds() == pytest.approx(90)

async def test_wrong(ledgermq_client):
    assert await ledgermq_client.list_topics() == ["x"]

async def test_forever(ledgermq_cluster):
    await asyncio.wait_for(asyncio.Event().wait(), 5)

@pytest.mark.ledgermq(broker=2)
def test_misspelled(ledgermq_cluster): ...
"""
"""Every test has its own cluster, and failures are shown."""

OTHER_COROUTINES = """\
import asyncio

async def test_real_time():
    assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"

async def test_virtual_time(ledgermq_cluster):
    assert type(asyncio.get_running_loop()).__name__ == "VirtualLoop"
"""
"""Coroutines without the fixtures stay with pytest-asyncio."""

THREADS = """\
import asyncio, time, ledgermq
from ledgermq.offset_stores import FileOffsetStore

async def test_store(ledgermq_cluster, ledgermq_client, tmp_path):
    await ledgermq_client.create_topic("t", partitions=2)
    async with ledgermq_client.producer() as producer:
        await producer.send("t", "1")
    store = FileOffsetStore(str(tmp_path / "a.json"))
    where = {"group": "a", "broadcast": True, "start": "earliest", "offset_store": store}
    async with ledgermq_client.consumer("t", **where) as c:
        assert [m.value for m in await c.fetch(timeout=5)] == [b"1"]

async def test_handler(ledgermq_cluster, ledgermq_client):
    seen, stop = [], asyncio.Event()
    await ledgermq_client.create_topic("t", partitions=1)

    @ledgermq_client.handler("t", group="g")
    def handle(message):
        time.sleep(0.1)
        seen.append(message.value)

    running = asyncio.create_task(ledgermq_client.run_handlers(stop=stop))
    async with ledgermq_client.producer() as producer:
        await producer.send("t", "1")
    await ledgermq_cluster.clock.advance(10)
    assert seen == [b"1"]
    stop.set()
    await running

async def test_thread(ledgermq_cluster):
    before = ledgermq_cluster.clock.now
    sleeping = asyncio.create_task(asyncio.sleep(3600))
    assert await asyncio.to_thread(lambda: time.sleep(0.2) or "done") == "done"
    assert ledgermq_cluster.clock.now == before
    sleeping.cancel()
"""
"""Functions in threads work, and time stands still meanwhile: offsets in a file, handlers that are no coroutines, and
functions of the test."""

STARTS_AGAIN = """\
import pytest

@pytest.mark.parametrize("same", [True, False])
async def test_it(ledgermq_cluster, ledgermq_client, same):
    await ledgermq_client.create_topic("t")
    (address,) = ledgermq_cluster.addresses
    await ledgermq_cluster.kill_broker(address)
    assert (await ledgermq_cluster.start_broker(address if same else "") == address) == same
    async with ledgermq_client.producer() as producer:
        await producer.send("t", "1")
    assert [topic.name for topic in await ledgermq_client.list_topics()] == ["t"]
"""
"""A broker that starts again is found."""

MARKED = """\
import pytest

@pytest.mark.asyncio
async def test_it(ledgermq_client):
    assert await ledgermq_client.list_topics() == []
"""
"""The marker of pytest-asyncio is accepted."""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for a user's tests, run in a process with the plugin, also before an installation knows it."""
    installed = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    options = "" if installed else f"-p {PLUGIN}"
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{options} -p no:cacheprovider -W error --strict-markers")
    monkeypatch.setenv("PYTHONPATH", str(CLONE), prepend=os.pathsep)
    return pytester


def outcomes(suite: pytest.Pytester, files: dict[str, str], options: Iterable[str]) -> dict[str, dict[str, str]]:
    """Run all files in one process. Return what became of each test, by file: "" if it passed, else what was shown."""
    for name, text in files.items():
        (suite.path / name).write_text(text)
    suite.runpytest_subprocess("-q", "--junitxml=found.xml", *options)
    found: dict[str, dict[str, str]] = {name: {} for name in files if name.startswith("test_")}
    for case in ET.parse(suite.path / "found.xml").iter("testcase"):
        shown = "".join(f"{part.tag}: {part.get('message')} {part.text}" for part in case if part.tag != "system-out")
        found[case.get("classname", "").split(".")[0] + ".py"][case.get("name", "")] = shown
    return found


@pytest.mark.slow
def test_suites_without_pytest_asyncio(suite: pytest.Pytester) -> None:
    examples = {name: (CLONE / "examples" / name).read_text() for name in ("reminders.py", "test_reminders.py")}
    files = {
        **EXAMPLES,
        **examples,
        "test_own_clusters.py": OWN_CLUSTERS,
        "test_threads.py": THREADS,
        "test_starts_again.py": STARTS_AGAIN,
    }
    found = outcomes(suite, files, ALONE)
    own = found.pop("test_own_clusters.py")
    assert [name for name, shown in own.items() if not shown] == [
        "test_one[a]",
        "test_one[b]",
        "test_time_moves_only_by_waiting",
    ]
    assert own["test_wrong"].startswith("failure: ")
    assert "== ['x']" in own["test_wrong"]
    assert own["test_forever"].startswith("failure: ")
    assert "TimeoutError" in own["test_forever"]
    assert own["test_misspelled"].startswith("error: ")
    assert "InvalidConfig: unknown setting 'broker'" in own["test_misspelled"]
    all_passed(found)
    assert {name: len(tests) for name, tests in found.items() if name not in EXAMPLES} == {
        "test_reminders.py": 2,
        "test_threads.py": 3,
        "test_starts_again.py": 2,
    }


def test_suites_beside_pytest_asyncio(suite: pytest.Pytester) -> None:
    files = {**EXAMPLES, "test_other_coroutines.py": OTHER_COROUTINES, "test_marked.py": MARKED}
    found = outcomes(suite, files, WITH_ASYNCIO)
    all_passed(found)
    assert {name: len(tests) for name, tests in found.items() if name not in EXAMPLES} == {
        "test_other_coroutines.py": 2,
        "test_marked.py": 1,
    }


def all_passed(found: dict[str, dict[str, str]]) -> None:
    """Each test has passed, and each example of the page is one test."""
    assert len(EXAMPLES) >= 3
    assert not [shown for tests in found.values() for shown in tests.values() if shown]
    assert {name: len(found[name]) for name in EXAMPLES} == dict.fromkeys(EXAMPLES, 1)


def test_a_suite_that_uses_no_fixture_imports_no_part_of_the_client(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            ours = ("ledgermq", "ledgermq_broker", "ledgermq_ledger", "pyarrow", "grpc")
            assert not [name for name in sys.modules if name.split(".")[0] in ours]
        """
    )
    suite.runpytest_subprocess("-q", *ALONE).assert_outcomes(passed=1)


def test_without_the_broker_the_fixture_says_what_to_install(suite: pytest.Pytester) -> None:
    suite.makeconftest("import sys; sys.modules['structlog'] = None")
    suite.makepyfile("def test_it(ledgermq_cluster): ...")
    result = suite.runpytest_subprocess("-q", *ALONE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*pip install "ledgermq?broker?"*'])


def test_the_entry_point_names_the_plugin() -> None:
    import tomllib

    project = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ledgermq": PLUGIN}
    program = f"import {PLUGIN}, sys; print(sorted(n for n in sys.modules if n.startswith('ledger')))"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(CLONE), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ledgermq_tools', 'ledgermq_tools.testing', 'ledgermq_tools.testing.plugin']"
