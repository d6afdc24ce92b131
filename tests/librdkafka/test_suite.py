"""librdkafka's own tests, built from its source, against brokers of ours: one process for each run.

Run single ones by their numbers: `python -m pytest -m librdkafka tests/librdkafka -k "0053 or 0111"`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra import librdkafka
from ledgermq.errors import NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.tokens import draw_token
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from tests.kafka import java
from tests.kafka.nodes import served
from tests.librdkafka.suite import BROKERS, RUNS, Run, names

pytestmark = [pytest.mark.librdkafka, pytest.mark.timeout(1500)]

KAFKA_VERSION = "4.1.0"
SECONDS_MAX = 1200
"""0113 took 709 s on a busy machine: most of it waits."""
PATIENCE = 5
"""By which the suite's time-outs of whole tests are longer."""
CALLS_KAFKA = "0045 0052"
"""They run kafka-topics.sh, which is made of the jars that `make test-kafka` uses. 0045 does in one of two runs."""
USER = "librdkafka"


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the suite's programs."""
    return librdkafka.install()


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The files that tell the suite's tests of each broker."""
    found: dict[str, Path] = {}
    with ExitStack() as brokers:
        for name, settings in BROKERS.items():
            folder = tmp_path_factory.mktemp(name)
            tokens: list[str] = []

            async def login(node: Node, tokens: list[str] = tokens) -> None:
                tokens.append(await _token(node))

            prepare = login if "security" in settings else None
            node = brokers.enter_context(served(folder / "root", prepare, default_partitions=4, **settings))
            lines = [f"metadata.broker.list={node.kafka_address}", f"test.timeout.multiplier={PATIENCE}"]
            if tokens:
                lines += ["security.protocol=SASL_PLAINTEXT", "sasl.mechanisms=PLAIN"]
                lines += [f"sasl.username={USER}", f"sasl.password={tokens[0]}"]
            found[name] = folder / "test.conf"
            found[name].write_text("\n".join(lines) + "\n")
        yield found


async def _token(node: Node) -> str:
    """Return a new token of the administrator, as soon as the broker serves what holds tokens."""
    drawn = draw_token(Sources())
    request = pb.CreateTokenRequest(token_id=drawn.token_id, hash=drawn.hash, user=USER)
    while True:
        try:
            await node.broker.service.create_token(request)
        except NotOwner:
            await asyncio.sleep(0.1)
        else:
            return drawn.text


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_of_librdkafka(built: Path, configs: dict[str, Path], run: Run, tmp_path: Path) -> None:
    config = configs[run.broker]
    environment = os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(str(built.parent / each) for each in ("src", "src-cpp")),
        "RDKAFKA_TEST_CONF": str(config),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_CONSUMER_GROUP_PROTOCOL": "classic",
        "TEST_LEVEL": "2",
        "TEST_SCENARIO": run.scenario,
        "BROKERS": config.read_text().split("\n")[0].partition("=")[2],
        "TESTS": run.number,
    }
    if run.subtest:
        environment["SUBTESTS"] = run.subtest
    if run.number in CALLS_KAFKA.split():
        environment["KAFKA_PATH"] = str(_kafka(tmp_path))
    done = subprocess.run(
        ["./test-runner", "-p1"],
        cwd=built,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-4000:]
    passed = set(re.findall(r" (\w+) +\| +PASSED", said))
    assert passed >= set(run.names), said[-2000:]
    assert not run.subtest or re.search(rf"\[ [^\n]*{re.escape(run.subtest)}[^\n]*: PASS ", said), said[-2000:]


def _kafka(folder: Path) -> Path:
    """Make a folder that looks like an installation of Kafka. The calling test is skipped where there is no Java."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "kafka-topics.sh"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(java.command(f"{java.TOOLS}.TopicCommand"))} "$@"\n')
    script.chmod(0o755)
    return folder


def test_each_of_the_suite_is_run_or_named(built: Path) -> None:
    """What its own table has stands in one of our lists."""
    table = (built / "test.c").read_text().partition("struct test tests[] = {")[2].partition("{NULL}};")[0]
    assert set(re.findall(r"_TEST\((\w+),", table)) == names()
