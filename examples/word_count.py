"""Count the words of a topic into another topic: each word counts once, although the counting process is
killed again and again.

    pip install "ledgermq[broker]"
    python examples/word_count.py [ROOT]          # by default a broker on the folder ./ledgermq-words

The program starts a broker, sends lines of text to the topic `lines`, and starts a process that counts.
That process kills itself with SIGKILL at a random point of a transaction, and is started again, four
times. At the end the program compares the counts in the topic `counts` with those of the text.

A transaction has the new counts and the position in `lines`. So after each kill either both are
stored or neither is, and the next process continues from there. The process needs no other state: the
topic `counts` has the latest count of each word (cleanup.policy=compact).
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import ledgermq

LINES, PARTITIONS, KILLS = 1200, 3, 4
SESSION_TIMEOUT_S = 3.0
"""How long the partitions of a killed process wait before the next process gets them."""
TEXT = "the broker keeps nothing and the bucket keeps it all so a ledger is a chain of segments"
START_S_MAX = 60.0


def lines() -> list[str]:
    chance = random.Random(18)
    return [" ".join(chance.choices(TEXT.split(), k=8)) for _ in range(LINES)]


# The process that counts


async def count(target: str, dies_in: int, where: str) -> None:
    """Count until no line is left. Die in transaction number `dies_in`, if that comes."""
    done = 0
    async with (
        ledgermq.connect(target) as client,
        client.transactions("word-count") as transactions,  # fences the former process, and aborts its transaction
        client.table("counts") as table,
        client.consumer("lines", group="word-count", commit="manual", session_timeout_s=SESSION_TIMEOUT_S) as consumer,
    ):
        counts = Counter({word.decode(): int(number) for word, number in table.items()})
        while True:
            messages = await consumer.fetch(50, timeout=1.0)
            if not messages and await is_at_end(client):
                return
            done += 1
            words = Counter(word for message in messages for word in (message.value or b"").decode().split())
            counts += words
            async with transactions.begin() as transaction:  # an error ends the process; the next one counts again
                for word in words:
                    transaction.send("counts", str(counts[word]), key=word)
                await transaction.send_offsets(consumer, messages)
                if (done, where) == (dies_in, "before the commit"):
                    await transaction.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                if (done, where) == (dies_in, "during the commit"):
                    asyncio.get_running_loop().call_later(random.random() / 50, os.kill, os.getpid(), signal.SIGKILL)
            if (done, where) == (dies_in, "after the commit"):
                os.kill(os.getpid(), signal.SIGKILL)


async def is_at_end(client: ledgermq.Client) -> bool:
    """Ask for the lag of the whole group. That of the consumer leaves out what it does not hold yet:
    the partitions of a process that was killed, until its session times out.
    """
    lag = await client.groups.lag("word-count")
    return len(lag) == PARTITIONS and not any(each.messages for each in lag.values())


# The process that starts the others


def main(root: str) -> None:
    broker, address = start_broker(root)
    try:
        asyncio.run(send(address))
        chance = random.Random()
        for _ in range(KILLS):
            where = chance.choice(("before the commit", "during the commit", "after the commit"))
            ended = run_counter(address, chance.randint(1, 3), where)
            print("killed " + where if ended == -signal.SIGKILL else f"ended with {ended}", flush=True)
        if ended := run_counter(address, 0, ""):
            sys.exit(f"the counting process ended with {ended}")
        asyncio.run(check(address))
    finally:
        broker.terminate()
        broker.wait()


def start_broker(root: str) -> tuple[subprocess.Popen[str], str]:
    """Return a broker's process, and its address."""
    command = [Path(sys.executable).parent / "ledgermq", "broker", root, "--port", "0"]
    log = Path("word-count-broker.log")
    with log.open("w") as output:
        broker = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
    until_s = time.monotonic() + START_S_MAX
    while time.monotonic() < until_s and broker.poll() is None:
        if found := re.search(r"listens on (\S+), root", log.read_text()):
            return broker, found[1]
        time.sleep(0.1)
    broker.kill()
    sys.exit(f"the broker did not start:\n{log.read_text()}")


async def send(address: str) -> None:
    async with ledgermq.connect(address) as client:
        await client.create_topic("lines", PARTITIONS)
        await client.create_topic("counts", 2, {"cleanup.policy": "compact"})
        async with client.producer() as producer:
            await producer.send_many("lines", lines())
            await producer.flush()


def run_counter(address: str, dies_in: int, where: str) -> int:
    return subprocess.run([sys.executable, __file__, "count", address, str(dies_in), where], check=False).returncode


async def check(address: str) -> None:
    async with (
        ledgermq.connect(address) as client,
        client.transactions("word-count"),  # waits until the last commit of the former process shows everywhere
        client.table("counts") as table,
    ):
        found = {word.decode(): int(number) for word, number in table.items()}
    expected = Counter(word for line in lines() for word in line.split())
    if found != expected:
        sys.exit(f"counts differ:\n{found}\n{dict(expected)}")
    print(f"{expected.total()} words counted, each once: {dict(expected.most_common(3))}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["count"]:
        asyncio.run(count(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
    else:
        given = sys.argv[1] if len(sys.argv) > 1 else "ledgermq-words"
        main(given if "://" in given else Path(given).absolute().as_uri())
