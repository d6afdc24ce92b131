"""librdkafka's own tests, built from its source, against a broker of ours: one process for each.

Each of its tests that needs a broker stands here, with what came out of it, or why it is not run. Those that need none
test the client against a made-up cluster.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import librdkafka
from tests.kafka import java
from tests.kafka.nodes import served

pytestmark = [pytest.mark.librdkafka, pytest.mark.timeout(1500)]

KAFKA_VERSION = "4.1.0"
SECONDS_MAX = 1200
"""0113 took 709 s on a busy machine: most of it waits."""

PASS = """
0001 0002 0003 0005 0007 0008 0012 0013 0014 0015 0016 0017 0018 0019 0020 0021 0022 0026 0029 0030 0031 0033 0034 0035
0036 0038 0039 0040 0041 0042 0044 0045 0048 0049 0050 0051 0052 0054 0056 0057 0059 0060 0063 0064 0065 0067 0068 0069
0070 0073 0075 0076 0080 0082 0083 0084 0085 0086 0088 0089 0090 0093 0094 0099 0102 0112 0113 0114 0118 0122 0123 0125
0127 0129 0130 0132 0140
"""
CALLS_KAFKA = "0052"
"""It runs kafka-topics.sh, which is made of the jars that `make test-kafka` uses."""
SKIPPED_IN_PART = "0045 0102"
SKIPPED_BY_THEMSELVES = "0028 0098 0107 0110 0111 0135 0142"

NOT_RUN = {
    "0011": "a topic is cleaned by key or by age, never by both, and an item is not appended to cleanup.policy",
    "0047": "shows a fault of the client",
    "0055": "measures latencies of a quick machine",
    "0061": "counts control records of transactions as lag; here they have no offsets, so the lag is smaller",
    "0077": "waits for Kafka's log cleaner",
    "0081": "expects ACLs without access rules: a broker with security = open refuses to list or store them",
    "0092": "changes message.format.version, which Kafka 4 has no more",
    "0097": "needs certificates of its own making",
    "0101": "needs a replica that may be read",
    "0103": "compares the leader epoch of a commit, which is not kept (docs/kafka.md); the parts before that pass",
    "0109": "calls kafka-acls.sh of a whole Kafka, as an administrator",
    "0115": "calls kafka-acls.sh of a whole Kafka, as an administrator",
    "0119": "calls kafka-acls.sh of a whole Kafka, as an administrator",
    "0126": "needs an identity provider",
    "0137": "expects the offsets of control records, which are not here; its parts without transactions pass",
    "0150": "needs telemetry, which is not served",
}


@pytest.fixture(scope="module")
def tests_of_librdkafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of its test runner, with a broker."""
    folder = librdkafka.install()
    with served(tmp_path_factory.mktemp("root"), default_partitions=4) as node:
        assert node.kafka_address is not None
        (folder / "test.conf").write_text(f"metadata.broker.list={node.kafka_address}\n")
        yield {
            "LD_LIBRARY_PATH": os.pathsep.join(str(folder.parent / each) for each in ("src", "src-cpp")),
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "TEST_CONSUMER_GROUP_PROTOCOL": "classic",
            "TEST_LEVEL": "1",
            "FOLDER": str(folder),
            "BROKERS": node.kafka_address,
        }


@pytest.mark.parametrize("number", [*PASS.split(), *SKIPPED_BY_THEMSELVES.split()])
def test_of_librdkafka(tests_of_librdkafka: dict[str, str], number: str, tmp_path: Path) -> None:
    folder = Path(tests_of_librdkafka["FOLDER"])
    environment = os.environ | tests_of_librdkafka | {"TESTS": number}
    if number in CALLS_KAFKA.split():
        environment |= {"KAFKA_PATH": str(_kafka(tmp_path))}
    done = subprocess.run(
        ["./test-runner", "-p1"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said[-4000:]
    skips = [*SKIPPED_BY_THEMSELVES.split(), *SKIPPED_IN_PART.split()]
    assert ("SKIPPED" in said) == (number in skips), said[-2000:]


def _kafka(folder: Path) -> Path:
    """Make a folder that looks like an installation of Kafka. The calling test is skipped where there is no Java."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "kafka-topics.sh"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(java.command(f"{java.TOOLS}.TopicCommand"))} "$@"\n')
    script.chmod(0o755)
    return folder


def test_each_stands_in_one_place() -> None:
    numbers = [*PASS.split(), *SKIPPED_BY_THEMSELVES.split(), *NOT_RUN]
    assert len(set(numbers)) == len(numbers)
    assert all(len(number) == 4 and number.isdigit() for number in numbers)
