"""Find Java 17 or newer for Spark and print its home: JAVA_HOME, PATH, else install it (apt on
Debian as root, else install-jdk).

Everything but the answer goes to stderr, so that `JAVA_HOME=$(python infra/java.py)` works.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from infra import debian

VERSION_MIN = 17
JDK = "openjdk-17-jdk-headless"
COMPILE_SECONDS_MAX = 300
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "java"


def version_of(java: Path) -> int:
    """The major version of a `java` binary; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0


def homes() -> Iterator[Path]:
    """Where Java may be installed already, best first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if found := shutil.which("java"):
        yield Path(found).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("java-*-openjdk*"), reverse=True)
    yield from sorted((java.parent.parent for java in CACHE.glob("**/bin/java")), reverse=True)


def installed() -> Path | None:
    return next((home for home in homes() if version_of(home / "bin" / "java") >= VERSION_MIN), None)


def install_by_apt() -> None:
    """Only as root on a system with apt, which Debian and its children are."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    say("Installing Java 17 with apt-get …")
    Path("/usr/share/man/man1").mkdir(
        parents=True, exist_ok=True
    )  # slim images lack it, and Java's package fails without it
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for package in ("openjdk-17-jre-headless", "default-jre-headless"):
        commands = [
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
        ]
        done = [
            subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            for command in commands
        ]
        # the exit code of apt does not count: it may fail at certificates, which Spark on local files does not need
        if installed() is not None:
            return
        say(done[-1].stderr.strip())


def install_by_library() -> None:
    import jdk  # PyPI's install-jdk

    say(f"Installing a Java runtime into {CACHE} …")
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        jdk.install("17", jre=True, path=str(CACHE))
    except (
        Exception
    ) as error:  # the library lets urllib's, tarfile's and its own errors through: all mean "not installed"
        say(f"that failed: {error}")


def compiler() -> Path:
    """Return the compiler, which Java for Spark does not need: installed with apt on Debian as root
    if there is none. Raises RuntimeError if it is not available.
    """
    if (found := _installed_compiler()) is None:
        debian.install(JDK)
        found = _installed_compiler()
    if found is None:
        raise RuntimeError(
            "there is no Java compiler (javac) beside Java, and it can only be installed as root on Debian"
        )
    return found


def _installed_compiler() -> Path | None:
    home = installed()
    return home / "bin" / "javac" if home is not None and (home / "bin" / "javac").exists() else None


def compile_source(source: Path, classes: Path, jars: Path) -> None:
    """Compile a program of one file into the folder `classes`, with the libraries in `jars`."""
    command = [str(compiler()), "-d", str(classes), "-cp", f"{jars}/*", str(source)]
    subprocess.run(command, check=True, timeout=COMPILE_SECONDS_MAX)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    home = installed()
    for install in (install_by_apt, install_by_library):
        if home is None:
            install()
            home = installed()
    if home is None:
        sys.exit(f"Spark needs Java {VERSION_MIN} or newer: install it and set JAVA_HOME.")
    print(home)


if __name__ == "__main__":
    main()
