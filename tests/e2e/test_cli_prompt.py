"""Answer the prompts of commands at a terminal: Ctrl-C ends them, inside asyncio too."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

LEDGERMQ = Path(sys.executable).parent / "ledgermq"
CTRL_C = b"\x03"
ENDS_S_MAX = 60.0
LOOKS = 5
"""Consecutive looks at a process that find it asleep."""


def answer(arguments: list[str], text: bytes) -> tuple[int, str]:
    """Run a command at a terminal and type `text` at its prompt; return its exit code and the output."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        # the terminal becomes that of the command's session, so that Ctrl-C reaches the command
        ["setsid", "--ctty", "--wait", LEDGERMQ, *arguments],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
    )
    os.close(its_end)
    try:
        shown = read_until(terminal, "[y/N]: ")
        until_it_reads(process.pid)
        os.write(terminal, text)
        code = process.wait(ENDS_S_MAX)
        return code, shown + read_until(terminal, None)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def until_it_reads(pid: int) -> None:
    """Wait until the main thread sleeps in the call that reads the terminal: a signal that comes between
    Python's last look for one and that call would not end the call.
    """
    asleep = 0

    def sleeps() -> bool:
        nonlocal asleep
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        return asleep == LOOKS

    wait_until(sleeps)


def read_until(terminal: int, end: str | None) -> str:
    """Read up to `end`; None: to the end, which a terminal whose last user has gone gives as an error."""
    shown = b""
    while end is None or end.encode() not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError:
            assert end is None, shown
            break
    return shown.decode()


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("text", "code"), [(CTRL_C, 130), (b"n\n", 1), (b"\x04", 1)])
@pytest.mark.parametrize(
    ("words", "question"),
    [
        ("topic delete t", "Delete topic t with all its records?"),
        ("transaction unresolved rollback g h", "Drop 1 unresolved messages of g (h)?"),
    ],
)
def test_a_prompt_ends_at_ctrl_c_at_no_and_at_the_end_of_input(
    words: str, question: str, text: bytes, code: int
) -> None:
    found, shown = answer(words.split(), text)
    assert found == code, shown
    assert question in shown
    assert "Traceback" not in shown


def typed_at(arguments: list[str], until: str, text: bytes) -> str:
    """Run a command at a terminal, type `text` once it has printed `until`, and return what it printed."""
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", LEDGERMQ, *arguments], stdin=its_end, stdout=its_end, stderr=its_end
    )
    os.close(its_end)
    try:
        shown = read_until(terminal, until)
        os.write(terminal, text)
        assert process.wait(ENDS_S_MAX) == 0
        return shown + read_until(terminal, None)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.mark.slow
def test_what_is_typed_is_not_drawn_over_and_comes_back_without_control_characters(tmp_path: Path) -> None:
    root = f"{tmp_path}/root"
    subprocess.run([LEDGERMQ, "topic", "create", "t", "--target", root], check=True, capture_output=True)
    shown = typed_at(["produce", "t", "--target", root], "Ctrl-D ends.", b"hello\x16\x1b]0;title\r\n\x04")
    assert "Type messages, one a line" in shown
    assert "\x1b[2K" not in shown, "no bar"
    shown = typed_at(["consume", "t", "--from", "earliest", "--until-end", "--target", root], "", b"")
    assert "hello\\x1b]0;title" in shown
    assert "\x1b]0;" not in shown
