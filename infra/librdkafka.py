"""Build librdkafka's own tests, from Debian's newest source package of it, in .cache/.

It takes some ten minutes of processor time, once. Needs apt, a C and a C++ compiler, make, and the headers of zlib and
OpenSSL. RapidJSON, without which four of the tests skip themselves, comes from Debian, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from infra.debian import CACHE, unpacked

SUITE = "sid"
"""Of Debian: the others have releases that are years old."""
SECONDS_MAX = 3600
NEEDED = ("apt-get", "gcc", "g++", "make")


def install() -> Path:
    """Return the folder of the built tests. Exits with one clear sentence if it cannot be made."""
    folder = CACHE / "librdkafka"
    tests, done = folder / "source" / "tests", folder / ".complete-with-rapidjson"
    if done.exists():
        return tests
    if missing := [each for each in NEEDED if shutil.which(each) is None]:
        sys.exit(f"librdkafka's tests cannot be built here: {', '.join(missing)} is not installed")
    rapidjson = unpacked("rapidjson-dev")
    if rapidjson is None:
        sys.exit("librdkafka's tests cannot be built here: apt does not have rapidjson-dev")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"Building librdkafka's tests in {folder} …", file=sys.stderr)
    [archive] = _downloaded(folder)
    (folder / "source").mkdir()
    _run(folder, "tar", "--extract", "--file", str(archive), "--strip-components=1", "--directory", "source")
    source, headers = folder / "source", {"CPLUS_INCLUDE_PATH": str(rapidjson / "usr" / "include")}
    _run(source, "./configure", "--disable-gssapi", "--disable-curl", **headers)
    _run(source, "make", f"-j{os.cpu_count()}", "libs", **headers)
    _run(source, "make", f"-j{os.cpu_count()}", "-C", "tests", "build", **headers)
    done.touch()
    return tests


def _downloaded(folder: Path) -> list[Path]:
    """Return the source archive. What apt knows of this machine stays as it is."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    sources = folder / "debian.sources"
    sources.write_text(_sources())
    options = [
        f"Dir::Etc::sourcelist={sources}",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={lists}",
        "APT::Get::List-Cleanup=0",
        "APT::Sandbox::User=root",
    ]
    apt = ["apt-get", "-qq", *(part for option in options for part in ("-o", option))]
    _run(folder, *apt, "update")
    _run(folder, *apt, "--download-only", "source", "librdkafka")
    return list(folder.glob("librdkafka_*.orig.tar.*"))


def _sources() -> str:
    """Return where apt finds sources: the machine's mirror of Debian, its newest suite. Exits if there is none."""
    for place in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if not place.exists():
            continue
        for line in place.read_text().splitlines():
            words = line.split()
            if words[:1] == ["URIs:"]:
                signed = "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg"
                return f"Types: deb-src\nURIs: {words[1]}\nSuites: {SUITE}\nComponents: main\n{signed}\n"
    sys.exit("librdkafka's tests cannot be built here: apt names no mirror of Debian in debian.sources")


def _run(folder: Path, *command: str, **more: str) -> None:
    """Run a command, with `more` in its environment. Exits if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} … failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    print(install())
