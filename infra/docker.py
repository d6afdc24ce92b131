"""A Docker daemon for tests, and images that come from Debian's packages instead of a registry of
images.

`python -m infra.docker` prints in one sentence whether this machine can do it, and prepares it:
daemon running, compose installed. A daemon that is started here stays; a base image, made once,
too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from infra import debian

SUITE = "bookworm"
BASE_IMAGE = f"ledgermq-test-base:{SUITE}"
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "curl")
DAEMON_LOG = Path(tempfile.gettempdir()) / "ledgermq-dockerd.log"
DAEMON_START_S_MAX = 60
BASE_S_MAX = 900
BUILD_S_MAX = 1800


def missing() -> str | None:
    """Return in one sentence why containers cannot run here; None if they can. Starts and installs
    what it may.
    """
    for program, package in (("docker", "docker.io"), ("debootstrap", "debootstrap")):
        if shutil.which(program) is None:
            debian.install(package)
        if shutil.which(program) is None:
            return f"{program} is not installed, and can only be installed as root on Debian ({package})"
    if os.geteuid() != 0:
        return "making a base image with debootstrap needs root"
    if not is_up() and shutil.which("dockerd") is None:
        debian.install("docker.io")
    if not is_up() and (why := _start()) is not None:
        return why
    if compose() is None:
        debian.install("docker-compose")
    return None if compose() is not None else "neither `docker compose` nor docker-compose is installed"


def is_up() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode == 0


def compose() -> list[str] | None:
    """Return the command: Docker's plugin, or docker-compose."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, timeout=60, check=False).returncode == 0
        ):
            return command
    return None


def base_image() -> str:
    """Make Debian with Python, once, by debootstrap."""
    if not has_image(BASE_IMAGE):
        print(f"Making {BASE_IMAGE} with debootstrap (a minute or two, once) …", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="ledgermq-base-") as root:
            command = ["debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", SUITE, root]
            subprocess.run(command, stdout=sys.stderr, timeout=BASE_S_MAX, check=True)
            for kept in ("var/cache/apt/archives", "var/lib/apt/lists"):
                shutil.rmtree(Path(root, kept), ignore_errors=True)
            with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
                subprocess.run(
                    ["docker", "import", "-", BASE_IMAGE],
                    stdin=packed.stdout,
                    capture_output=True,
                    timeout=BASE_S_MAX,
                    check=True,
                )
            if packed.returncode != 0:
                raise RuntimeError("tar could not read the whole base system")
    return BASE_IMAGE


def has_image(name: str) -> bool:
    return (
        subprocess.run(["docker", "image", "inspect", name], capture_output=True, timeout=60, check=False).returncode
        == 0
    )


def build(name: str, folder: Path, arguments: Iterable[str] = ()) -> str:
    """Build `folder` with its Dockerfile; the daemon's cache serves what has not changed.

    Raises RuntimeError with the output.
    """
    options = [part for argument in arguments for part in ("--build-arg", argument)]
    done = subprocess.run(
        ["docker", "build", "-t", name, *options, str(folder)],
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"image {name} could not be built:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return name


def _start() -> str | None:
    """Start the daemon permanently; return None when it is up."""
    print(f"Starting dockerd; it stays, its log is {DAEMON_LOG} …", file=sys.stderr)
    with DAEMON_LOG.open("ab") as log:
        daemon = subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + DAEMON_START_S_MAX
    while time.monotonic() < until and daemon.poll() is None:
        if is_up():
            return None
        time.sleep(0.5)
    lines = DAEMON_LOG.read_text(errors="replace").strip().splitlines()
    return (
        f"the Docker daemon does not start: {lines[-1] if lines else 'it said nothing'} (all of its log: {DAEMON_LOG})"
    )


if __name__ == "__main__":
    if (reason := missing()) is not None:
        sys.exit(f"Containers cannot be run here: {reason}.")
