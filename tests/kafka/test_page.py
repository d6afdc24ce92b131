"""The blocks of docs/kafka.md run as they are written, with the address of the test's broker."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra import debian
from tests.docs.pages import CLONE, Block, blocks_of
from tests.kafka.java import TOOLS, command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

ADDRESS = "127.0.0.1:9092"
BLOCKS = [block for block in blocks_of(CLONE / "docs" / "kafka.md") if "test_page.py runs it" in block.reason]
SCRIPTS = {
    "kafka-topics.sh": "TopicCommand",
    "kafka-console-producer.sh": "ConsoleProducer",
    "kafka-console-consumer.sh": "consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "consumer.group.ConsumerGroupCommand",
}
"""The scripts of Kafka's distribution, by the class that they start."""
SECONDS_MAX = 200


def of(word: str) -> str:
    """Return the block with a word in it."""
    [found] = [block for block in BLOCKS if word in block.text]
    return found.text


def shell(text: str, bootstrap: str, environment: dict[str, str]) -> str:
    assert ADDRESS in text
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text.replace(ADDRESS, bootstrap)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(text: str, bootstrap: str) -> None:
    assert ADDRESS in text
    exec(compile(text.replace(ADDRESS, bootstrap), "docs/kafka.md", "exec"), {"__name__": "__main__"})


def test_each_block_has_a_test() -> None:
    words = ("kcat", "confluent_kafka", "kafka-topics.sh", "SparkSession")
    assert [block for block in BLOCKS if not any(word in block.text for word in words)] == []
    assert len(BLOCKS) == len(words)
    assert all(isinstance(block, Block) for block in BLOCKS)


def test_kcat(bootstrap: str) -> None:
    environment = {}
    if shutil.which("kcat") is None:
        folder = debian.unpacked("kcat")
        if folder is None:
            pytest.skip("there is no kcat, and no apt to fetch it")
        environment = {
            "PATH": f"{folder / 'usr' / 'bin'}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": debian.libraries(folder),
        }
    assert "first message" in shell(of("kcat"), bootstrap, environment)


def test_python(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    python(of("confluent_kafka"), bootstrap)
    assert "message" in capsys.readouterr().out


def test_java_and_then_spark(
    bootstrap: str, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    for script, main in SCRIPTS.items():
        line = " ".join(f"'{word}'" for word in command(f"{TOOLS}.{main}"))
        (tmp_path / script).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (tmp_path / script).chmod(0o755)
    said = shell(of("kafka-topics.sh"), bootstrap, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "3 pens" in said
    assert "LOG-END-OFFSET" in said
    python(of("SparkSession"), bootstrap)
    assert "3 pens" in capsys.readouterr().out
