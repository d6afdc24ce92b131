"""The child process: `python -m tests.fuzz.worker SEED PROGRESS_FILE SURFACE:FIRST:COUNT …`

Before each input it writes the number of the piece of work and of the input into the progress file,
so that the process that sees this one die knows by what. Failures that are exceptions go to stdout,
a JSON object a line, and the work goes on.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import resource
import struct
import sys
import traceback
from pathlib import Path

PROGRESS = struct.Struct("<QQ")
ADDRESS_SPACE_BYTES_MAX = 6 * 1024**3
"""An input that makes a parser take more than this is a failure, not a reason to slow the machine
down.
"""


def main(seed: int, progress_file: Path, works: list[str]) -> None:
    from tests.fuzz.broken import BROKEN
    from tests.fuzz.surfaces import all_surfaces

    surfaces = {**all_surfaces(), **BROKEN}
    with progress_file.open("r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as progress:
        for at, work in enumerate(works):
            name, first, count = work.rsplit(":", 2)
            surface = surfaces[name]
            for number in range(int(first), int(first) + int(count)):
                PROGRESS.pack_into(progress, 0, at, number)
                try:
                    surface.run(surface.input(seed, number))
                except Exception as error:
                    tell(name, number, error)
            surface.close()
        PROGRESS.pack_into(progress, 0, len(works), 0)


def tell(surface: str, number: int, error: Exception) -> None:
    trace = traceback.extract_tb(error.__traceback__)
    place = f"{Path(trace[-1].filename).name}:{trace[-1].lineno}" if trace else ""
    print(
        json.dumps(
            {"surface": surface, "number": number, "what": f"{type(error).__name__} at {place}: {error!s:.300}"}
        ),
        flush=True,
    )


if __name__ == "__main__":
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES_MAX, resource.RLIM_INFINITY))
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
