"""Run `ledgermq …` in processes that have imported it already: a call costs 0.07 s of processor
time, where a start costs 0.95 s.

with WarmCommands(folder) as command:    # the path of a program `ledgermq`, to be called like the real one
    subprocess.run([command, "topic", "list"])

One process imports the command line, then forks for each call: every command still has a separate
process, arguments, environment, folder, standard streams and exit code. Tests of starting, of
signals and of imports use the real program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

# -S leaves out site-packages: this program needs none, and starts in 15 ms.
PROGRAM = """#!{python} -SE
import json, os, socket, sys
place = socket.socket(socket.AF_UNIX)
place.connect({socket!r})
socket.send_fds(place, [json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode() + b"\\n"], [0, 1, 2])
sys.exit(int(place.recv(16)))
"""


class WarmCommands:
    def __init__(self, folder: Path) -> None:
        """`folder`: an empty place for the program and its socket; a short path (100 characters at
        most).
        """
        self._program = folder / "ledgermq"
        self._socket = folder / "s"

    def __enter__(self) -> Path:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self._socket))
            listening.listen(64)
            command = [sys.executable, "-m", "tests.e2e.warm_cli", str(listening.fileno())]
            self._server = subprocess.Popen(command, pass_fds=[listening.fileno()], start_new_session=True)
        self._program.write_text(PROGRAM.format(python=sys.executable, socket=str(self._socket)))
        self._program.chmod(0o755)
        return self._program

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._server.pid, signal.SIGTERM)  # commands that did not end by themselves, too
        self._server.wait(60)


class Call:
    """One call: what the program sent, and the connection that takes the exit code."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        data, self._files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        while not data.endswith(b"\n"):
            data += connection.recv(1 << 20)
        self.arguments, self.environment, self.folder = json.loads(data)

    def take_over(self) -> None:
        """Make this process the command."""
        for number, file in enumerate(self._files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv = ["ledgermq", *self.arguments]

    def close_files(self) -> None:
        for file in self._files:
            os.close(file)


def serve(listening: socket.socket) -> None:
    """Serve until SIGTERM; a process that is to be a command leaves by returning."""
    while True:
        connection, _ = listening.accept()
        with connection:
            call = Call(connection)
            if os.fork() == 0:  # waits for the command, and answers with its exit code
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                command = os.fork()
                if command == 0:
                    listening.close()
                    connection.close()
                    call.take_over()
                    return
                call.close_files()
                _, status = os.waitpid(command, 0)
                connection.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
                os._exit(0)
            call.close_files()


def main() -> NoReturn:
    import ledgermq
    from ledgermq.cli import main as command_line

    command_line.build()  # with everything that commands import
    _ = ledgermq.connect  # and with the client, which the package imports when it is first used
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    serve(socket.socket(fileno=int(sys.argv[1])))
    command_line.main()
    raise SystemExit


if __name__ == "__main__":
    main()
