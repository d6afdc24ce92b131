"""Kafka Streams and Kafka Connect run on the Kafka port."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest

from infra import java, maven
from tests.kafka.java import command, running
from tests.kafka.topics import create, newest, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

WORD_COUNT = Path(__file__).parent / "programs" / "WordCount.java"
LINES = ["to be or not to be", "that is the question", "to be"] * 10


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command("WordCount")  # skips where there is no Java
    folder = tmp_path_factory.mktemp("classes")
    java.compile_source(WORD_COUNT, folder, maven.jars("kafka"))
    return folder


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_streams_counts_words_and_goes_on_after_a_restart(
    bootstrap: str, classes: Path, tmp_path: Path, guarantee: str
) -> None:
    name = uuid.uuid4().hex
    source, counts = f"lines-{name}", f"counts-{name}"
    create(bootstrap, source, counts)
    wanted = Counter[str]()
    for run in range(2):  # the second one has to restore its counts from the changelog topic
        write(bootstrap, source, LINES)
        wanted.update(word for line in LINES for word in line.split())
        asked = (bootstrap, f"app-{name}", source, counts, guarantee, str(tmp_path / f"state-{run}"))
        program = command("WordCount", *asked, classes=classes)
        with running(program, log := tmp_path / f"streams-{run}.log") as process, newest(bootstrap, counts) as read:

            def is_counted() -> bool:
                assert process.poll() is None, log.read_text()
                return {word: int(count) for word, count in read().items()} == wanted

            wait_until(is_counted)


def test_connect_copies_a_file_through_a_topic(bootstrap: str, tmp_path: Path) -> None:
    topic = f"t{uuid.uuid4().hex}"
    lines = [f"line {number}" for number in range(50)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    converter = "org.apache.kafka.connect.storage.StringConverter"
    files = {
        "worker": {
            "bootstrap.servers": bootstrap,
            "key.converter": converter,
            "value.converter": converter,
            "offset.storage.file.filename": tmp_path / "offsets",
            "offset.flush.interval.ms": 500,
            "listeners": "http://127.0.0.1:0",
        },
        "source": {
            "name": f"source-{topic}",
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": 1,
            "file": tmp_path / "in.txt",
            "topic": topic,
        },
        "sink": {
            "name": f"sink-{topic}",
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": 1,
            "file": tmp_path / "out.txt",
            "topics": topic,
        },
    }
    for file, settings in files.items():
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (tmp_path / f"{file}.properties").write_text(text)
    asked = [str(tmp_path / f"{file}.properties") for file in files]
    out = tmp_path / "out.txt"
    log = tmp_path / "connect.log"
    with running(command("org.apache.kafka.connect.cli.ConnectStandalone", *asked), log) as process:

        def is_copied() -> bool:
            assert process.poll() is None, log.read_text()
            return out.exists() and out.read_text().splitlines() == lines

        wait_until(is_copied)
        lines.append("last")
        with (tmp_path / "in.txt").open("a") as more:
            more.write("last\n")
        wait_until(is_copied)
