"""A program that ends without closing its producer is told how many records may be lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, ledgermq

async def main():
    client = ledgermq.Client(Nowhere(), ["127.0.0.1:1"])
    producer = client.producer()
    for number in range(7):
        producer.send("t", b"x")
    await asyncio.sleep(0.1)
    CLOSE

from ledgermq.client.connection.grpc_connection import GrpcConnector as Nowhere
END
"""
BY_RUN = "asyncio.run(main())"
BY_A_LOOP_THAT_STOPS = "loop = asyncio.new_event_loop(); loop.run_until_complete(main())"


def errors_of(end: str, close: str = "KEPT.append((client, producer))") -> str:
    text = "KEPT = []\n" + PROGRAM.replace("END", end).replace("CLOSE", close)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("end", [BY_RUN, BY_A_LOOP_THAT_STOPS])
def test_it_says_how_many_records_may_be_lost(end: str) -> None:
    assert errors_of(end).count("7 records may not be stored: a producer was not closed") == 1


def test_it_says_nothing_of_a_producer_that_was_closed() -> None:
    assert "may not be stored" not in errors_of(BY_RUN, "await producer.abort(); await client.abort()")
