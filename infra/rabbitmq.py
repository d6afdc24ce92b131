"""Provide a real RabbitMQ for benchmarks: Debian's packages of it and of Erlang, unpacked into
.cache/ and configured for that place.

The package is not installed, because Debian's package starts a service on the usual ports, as a
separate user.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from infra import debian

ERLANG_AT = "/usr/lib/erlang"


@dataclass(frozen=True)
class Programs:
    """`home`: RabbitMQ's own folder, with sbin/ and plugins/.

    `environment`: what its processes need besides this process's environment.
    """

    home: Path
    erlang: Path
    environment: dict[str, str]

    @property
    def version(self) -> str:
        return self.home.name.rpartition("-")[2]


def install() -> Programs:
    """Return the programs. Exits with one clear sentence if they are not available."""
    folder = debian.unpacked("rabbitmq-server")
    homes = sorted((folder / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")) if folder is not None else []
    if folder is None or not homes:
        sys.exit("Debian's package of RabbitMQ cannot be had here.")
    erlang = folder / ERLANG_AT.lstrip("/")
    if not erlang.exists():  # this machine has it already
        return Programs(homes[-1], Path(ERLANG_AT), {"LD_LIBRARY_PATH": debian.libraries(folder)})
    _move(erlang)
    path = f"{erlang / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return Programs(homes[-1], erlang, {"PATH": path, "LD_LIBRARY_PATH": debian.libraries(folder)})


def _move(erlang: Path) -> None:
    """Adapt the scripts that start Erlang, which name the folder that they were installed in."""
    for script in (erlang / "bin" / "erl", *erlang.glob("erts-*/bin/erl")):
        text = script.read_text()
        moved = text.replace(f"ROOTDIR={ERLANG_AT}\n", f"ROOTDIR={erlang}\n")
        if moved != text:
            script.write_text(moved)


if __name__ == "__main__":
    print(install().home)
