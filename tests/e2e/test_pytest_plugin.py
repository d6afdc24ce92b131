"""The pytest plugin in test suites of users: the examples of docs/testing.md, suites with and without
pytest-asyncio, and suites that do not use it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.docs.pages import CLONE, blocks_of

pytest_plugins = ["pytester"]
PLUGIN = "ledgermq_tools.testing.plugin"
ALONE = ("-p", "no:asyncio")
WITH_ASYNCIO = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
EXAMPLES = [block for block in blocks_of(CLONE / "docs" / "testing.md") if block.language == "python"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for a user's tests, run in a process with the plugin, also before an installation knows it."""
    installed = any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))
    options = "" if installed else f"-p {PLUGIN}"
    monkeypatch.setenv("PYTEST_ADDOPTS", f"{options} -p no:cacheprovider -W error --strict-markers")
    monkeypatch.setenv("PYTHONPATH", str(CLONE), prepend=os.pathsep)
    return pytester


def passed(suite: pytest.Pytester, *options: str, count: int = 1) -> str:
    result = suite.runpytest_subprocess("-q", *options)
    result.assert_outcomes(passed=count)
    return result.stdout.str()


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.place)
@pytest.mark.parametrize("options", [ALONE, WITH_ASYNCIO], ids=["alone", "asyncio"])
def test_every_example_of_the_page_passes(suite: pytest.Pytester, block: object, options: tuple[str, ...]) -> None:
    assert len(EXAMPLES) >= 3
    suite.makepyfile(block.text)  # type: ignore[attr-defined]
    passed(suite, *options)


def test_the_tests_in_our_examples_pass(suite: pytest.Pytester) -> None:
    for name in ("reminders.py", "test_reminders.py"):
        (suite.path / name).write_text((CLONE / "examples" / name).read_text())
    passed(suite, *ALONE, count=2)


def test_every_test_has_a_cluster_of_its_own_and_failures_are_shown(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
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
    )
    result = suite.runpytest_subprocess("-q", *ALONE)
    result.assert_outcomes(passed=3, failed=2, errors=1)
    result.stdout.fnmatch_lines(["*InvalidConfig: unknown setting 'broker'*", "*== *x*", "*TimeoutError*"])


def test_coroutines_without_the_fixtures_stay_with_pytest_asyncio(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import asyncio

        async def test_real_time():
            assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"

        async def test_virtual_time(ledgermq_cluster):
            assert type(asyncio.get_running_loop()).__name__ == "VirtualLoop"
        """
    )
    passed(suite, *WITH_ASYNCIO, count=2)


def test_a_suite_that_uses_no_fixture_imports_no_part_of_the_client(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            ours = ("ledgermq", "ledgermq_broker", "ledgermq_ledger", "pyarrow", "grpc")
            assert not [name for name in sys.modules if name.split(".")[0] in ours]
        """
    )
    passed(suite, *ALONE)


def test_without_the_broker_the_fixture_says_what_to_install(suite: pytest.Pytester) -> None:
    suite.makeconftest("import sys; sys.modules['ledgermq_broker'] = None")
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


def test_functions_in_threads_work_and_time_stands_still_meanwhile(suite: pytest.Pytester) -> None:
    """Offsets in a file, handlers that are no coroutines, and functions of the test."""
    suite.makepyfile(
        """
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
    )
    passed(suite, *ALONE, count=3)


def test_a_broker_that_starts_again_is_found(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
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
    )
    passed(suite, *ALONE, count=2)


def test_the_marker_of_pytest_asyncio_is_accepted(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.asyncio
        async def test_it(ledgermq_client):
            assert await ledgermq_client.list_topics() == []
        """
    )
    passed(suite, *WITH_ASYNCIO)
