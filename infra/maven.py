"""Fetch jars of a server or tool once with Maven into .cache/NAME/, from a list of coordinates in a
pom beside this file.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from infra import debian

POMS = Path(__file__).resolve().parent
CACHE = POMS.parent / ".cache"
SECONDS_MAX = 900


def jars(name: str) -> Path:
    """Return the folder with the jars of `infra/NAME.pom.xml` and of all their dependencies. They are
    fetched again when that file has changed.

    Exits with one clear sentence if they are not available.
    """
    folder = CACHE / name
    done = folder / ".complete"
    pom = POMS / f"{name}.pom.xml"
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    if done.exists() and done.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    if shutil.which("mvn") is None:
        debian.install("maven")
    if shutil.which("mvn") is None:
        sys.exit(f"There are no jars in .cache/{name}/, and no Maven (mvn) on PATH to fetch them.")
    print(f"Fetching the jars of {name} with Maven (a minute, once) …", file=sys.stderr)
    command = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}",
        "-DincludeScope=runtime",
    ]
    if subprocess.run(command, timeout=SECONDS_MAX, stdout=sys.stderr, check=False).returncode != 0:
        sys.exit(f"Maven could not fetch the jars of {name}, see above.")
    done.write_text(wanted)
    return folder
