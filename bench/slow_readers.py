"""Many readers that take 1 KB a second, in one process: `python -m bench.slow_readers TARGET TOPIC
--readers 250`.

Each has its own connection with the smallest window that gRPC allows, reads all partitions, and
asks for the next answer once it has spent as long on the last one as that takes at `--bytes-per-s`.
A stream that ends is opened again, where it was. Says "connected" once each has an answer, and
stays until its standard input ends, or until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

import grpc.aio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import FETCH

WINDOW: tuple[tuple[str, int], ...] = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * 1024),
)
AGAIN_S = 1.0


async def read(target: str, topic: str, partitions: int, bytes_per_s: float, connected: Callable[[], None]) -> None:
    channel = grpc.aio.insecure_channel(target, options=GRPC_OPTIONS + WINDOW)
    fetch = channel.unary_stream(FETCH.path, bytes, bytes)
    offsets = dict.fromkeys(range(partitions), 0)
    while True:
        wanted = [pb.FetchPartition(topic=topic, partition=number, offset=offset) for number, offset in offsets.items()]
        try:
            async for data in fetch(FETCH.encode_request(pb.FetchRequest(partitions=wanted))):
                connected()
                for part in FETCH.decode_response(data).header.partitions:
                    if part.batches:
                        offsets[part.partition] = part.batches[-1].base_offset + part.batches[-1].record_count
                await asyncio.sleep(len(data) / bytes_per_s)
        except grpc.aio.AioRpcError:
            pass
        await asyncio.sleep(AGAIN_S)


async def stay(options: argparse.Namespace) -> None:
    events = [asyncio.Event() for _ in range(options.readers)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                read(options.target.split(",")[0], options.topic, options.partitions, options.bytes_per_s, event.set)
            )
            for event in events
        ]
        for event in events:
            await event.wait()
        print("connected", flush=True)
        if options.until_killed:
            return
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("topic")
    parser.add_argument("--readers", type=int, default=250)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--bytes-per-s", type=float, default=1000.0)
    parser.add_argument("--until-killed", action="store_true", help="do not look at standard input")
    asyncio.run(stay(parser.parse_args()))


if __name__ == "__main__":
    main()
