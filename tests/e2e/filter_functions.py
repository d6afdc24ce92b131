"""Install filter functions for the brokers of a test, as an operator does: a distribution with entry points."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SOURCE = """
import os, sys, time
from pathlib import Path

FOLDER = Path(__file__).parent

def even(message):
    if message.value == b"0":
        print("what a function prints disturbs nothing")
    return int(message.value) % 2 == 0

def by_everything(message):
    return (message.key, message.tag, message.headers.get("n")) == (b"k", "A", b"5") and message.timestamp_us > 0

def raising(message):
    if int(message.value) % 3 == 0:
        raise ValueError("three")
    return True

def hanging(message):
    while int(message.value) == 7:
        time.sleep(1)
    return True

def hanging_once(message):
    mark = FOLDER / "hung"
    if int(message.value) == 7 and not mark.exists():
        mark.touch()
        time.sleep(3600)
    return True

def exiting(message):
    if int(message.value) == 7:
        os._exit(3)
    return True

def slow(message):
    time.sleep(0.02)
    return int(message.value) % 2 == 0
"""
NAMES = ("even", "by_everything", "raising", "hanging", "hanging_once", "exiting", "slow")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the functions of SOURCE in this process and its children, and one that cannot be loaded."""
    (folder / "filter_functions_of_test.py").write_text(SOURCE)
    info = folder / "filter_functions_of_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: filter-functions-of-test\nVersion: 1.0\n")
    entries = [f"{name} = filter_functions_of_test:{name}" for name in NAMES]
    entries += ["missing = filter_functions_of_test:nothing", "wrong = filter_functions_of_test:FOLDER"]
    (info / "entry_points.txt").write_text("[ledgermq.filters]\n" + "\n".join(entries) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
