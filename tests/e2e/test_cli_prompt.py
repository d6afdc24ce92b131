"""Answer the prompts of commands at a terminal: Ctrl-C ends them, inside asyncio too."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

LEDGERMQ = Path(sys.executable).parent / "ledgermq"
CTRL_C = b"\x03"
ENDS_S_MAX = 60.0
PRESSED_MAX = 20


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
        os.write(terminal, text)
        code = ended(process, terminal, text)
        return code, shown + read_until(terminal, None)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def ended(process: subprocess.Popen[bytes], terminal: int, text: bytes) -> int:
    """Return the exit code. Ctrl-C is pressed again after a while, as a user would: a signal that comes
    between Python's last look and the call that reads the terminal does not end that call.
    """
    for _ in range(PRESSED_MAX):
        try:
            return process.wait(ENDS_S_MAX / PRESSED_MAX)
        except subprocess.TimeoutExpired:
            if text == CTRL_C:
                os.write(terminal, text)
    return process.wait(ENDS_S_MAX)


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
def test_a_prompt_ends_at_ctrl_c_at_no_and_at_the_end_of_input(text: bytes, code: int) -> None:
    found, shown = answer(["topic", "delete", "t"], text)
    assert found == code, shown
    assert "Delete topic t with all its records?" in shown
    assert "Traceback" not in shown
