"""Inputs drawn by hypothesis, in a child process: `python -m tests.fuzz.drawn SEED INPUT_FILE
EXAMPLES SURFACE…`

An input is any bytes, or a valid one with a few pieces replaced; hypothesis makes one that fails as
small as it can. The input file holds the present one, so that the process that sees this one die
knows by what. Failures go to stdout as the worker's do, with the bytes.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz.surface import Surface
from tests.fuzz.worker import ADDRESS_SPACE_BYTES_MAX

PIECES_MAX = 3
_piece = st.tuples(st.integers(0, 10**6), st.integers(0, 40), st.binary(max_size=40))


def inputs(surface: Surface) -> st.SearchStrategy[bytes]:
    edited = st.builds(_edited, st.sampled_from(list(surface.seeds)), st.lists(_piece, max_size=PIECES_MAX))
    return st.binary(max_size=300) | edited | edited


def _edited(data: bytes, pieces: list[tuple[int, int, bytes]]) -> bytes:
    """Each piece (where, length, by what) counts from the end: what says most stands there, or at
    the begin.
    """
    for where, length, content in pieces:
        at = len(data) - where % (len(data) + 1)
        data = data[:at] + content + data[at + length :]
    return data


def run(surface: Surface, seed: int, examples: int, present: Path) -> bytes | None:
    """The smallest input found that fails."""
    failing: list[bytes] = []

    @seeded(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(surface))
    def check(data: bytes) -> None:
        present.write_bytes(data)
        try:
            surface.run(data)
        except Exception:
            failing.append(data)
            raise

    try:
        check()
    except Exception:
        return failing[-1]
    return None


def main(seed: int, present: Path, examples: int, names: list[str]) -> None:
    from tests.fuzz.broken import BROKEN
    from tests.fuzz.surfaces import all_surfaces

    surfaces = {**all_surfaces(), **BROKEN}
    for name in names:
        surface = surfaces[name]
        data = run(surface, seed, examples, present)
        if data is not None:
            try:
                surface.run(data)
                what = "once, and not again"
            except Exception as error:
                trace = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__} at {Path(trace.filename).name}:{trace.lineno}: {error!s:.300}"
            print(json.dumps({"surface": name, "what": what, "input": data.hex()}), flush=True)
        surface.close()


if __name__ == "__main__":
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES_MAX, resource.RLIM_INFINITY))
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
