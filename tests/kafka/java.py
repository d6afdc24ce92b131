"""Kafka's own tools of Java, from the jars of `infra/kafka.pom.xml`: one process for each call."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra import java, maven

TOOLS = "org.apache.kafka.tools"
SECONDS_MAX = 120
_NOISE = ("SLF4J:", "OpenJDK ", "WARNING:", "WARN StatusConsoleListener")


def command(main: str, *arguments: str, classes: Path | None = None, jars: Path | None = None) -> list[str]:
    """Return the command that runs a class. The calling test is skipped where there is no Java."""
    home = java.installed()
    if home is None:
        pytest.skip(f"there is no Java {java.VERSION_MIN} or newer: `python infra/java.py` installs it")
    path = os.pathsep.join([*([str(classes)] if classes else []), f"{jars or maven.jars('kafka')}/*"])
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")  # these processes live for seconds
    return [str(home / "bin" / "java"), *quick, "-cp", path, main, *arguments]


def tool(main: str, *arguments: str, text: str = "", status: int = 0) -> str:
    """Run a tool to its end and return what it says. `text`: its input. `status`: that it has to end with."""
    main = main if main.startswith("kafka.") else f"{TOOLS}.{main}"
    done = subprocess.run(
        command(main, *arguments),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = "\n".join(line for line in done.stdout.splitlines() if not line.startswith(_NOISE))
    assert done.returncode == status, f"{main} {arguments} ended with {done.returncode}:\n{said}"
    return said


@contextmanager
def running(command: Sequence[str], log: Path, folder: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that goes on until the block ends; its output is in `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
