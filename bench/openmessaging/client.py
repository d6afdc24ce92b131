"""The client process of row S5: all producers and the reader. Prints one JSON line.

python -m bench.openmessaging.client openmessaging TARGET TOPIC --megabytes-per-s 50 --keyed --core 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import asdict

import ledgermq
from bench.openmessaging.shape import Shape, bear
from ledgermq.sources import Sources


async def run(options: argparse.Namespace) -> dict[str, object]:
    shape = Shape(options.megabytes_per_s, options.keyed, options.seconds)
    borne = await bear(
        lambda name: ledgermq.connect(options.target, client_id=name),
        options.topic,
        shape,
        Sources().now_us,
        lambda: None,
    )
    return {**asdict(borne), "megabytes_per_s": borne.megabytes_per_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["openmessaging"])
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--megabytes-per-s", type=float, required=True)
    parser.add_argument("--keyed", action="store_true", help="keys over all partitions")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--core", type=int, help="run on this core alone")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    print(json.dumps(asyncio.run(run(options))))


if __name__ == "__main__":
    main()
