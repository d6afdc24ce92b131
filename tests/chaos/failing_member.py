"""A member whose handler fails, as a process that is killed, stopped and paused: `python -m
tests.chaos.failing_member TARGET GROUP NAME SEED DIARY`.

What the handler does follows from the message's origin and the number of the attempt, so the judge knows
where each message must be in the end. The diary has a line for each message of the judged topic before
the handler's call ends, as a `member` writes it, and one for each success (`succeeded`). SIGTERM: commit,
leave, end.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import ledgermq
from ledgermq import Retry
from ledgermq.errors import LedgerMQError
from tests.chaos.groups import GROUPS
from tests.chaos.member import JOINS, POLL_S_MAX, SESSION_S, Diary
from tests.chaos.workload import READ_S, REQUEST_S
from tests.simulation.failures_truth import DEAD_LETTER, SUCCESS, FailuresPlan, answer_of

PLAN = FailuresPlan(members=2, attempts_max=3, delays_s=(0.5, 3.0), fails=0.02, far_s=0.0)
"""Of many messages few fail, as in a program that works."""
CALL_S_MAX = 0.005


async def main(target: str, group: str, name: str, seed: str, path: str) -> None:
    diary, stop = Diary(path), asyncio.Event()
    async with ledgermq.connect(target, timeout_s=20, attempt_timeout_s=REQUEST_S) as client:

        @client.handler(
            GROUPS[group],
            group=group,
            ordered_by=None,
            concurrency=8,
            commit_interval_ms=500,
            session_timeout_s=SESSION_S,
            heartbeat_wait_s=1.0,
            max_poll_interval_s=POLL_S_MAX,
            request_timeout_s=READ_S,
            on_failure=lambda message, error, attempt: None,
            retry=Retry.levels(PLAN.attempts_max, PLAN.delays_s),
        )
        async def handle(message: ledgermq.GroupMessage) -> None:
            await asyncio.sleep(CALL_S_MAX * (message.offset % 7) / 7)
            diary.handled([message])
            origin = message.origin
            answer = answer_of(PLAN, int(seed), origin, message.attempt)
            if answer.what == SUCCESS:
                diary.write(f"succeeded {origin.topic} {origin.partition} {origin.offset} {message.attempt}")
            elif answer.what == DEAD_LETTER:
                message.dead_letter("the program wants it so")
            elif answer.delay_s is not None:
                message.nack(answer.delay_s)
            else:
                raise ZeroDivisionError(name)

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        print(JOINS, flush=True)
        while not stop.is_set():
            try:
                await client.run_handlers(stop=stop)
            except LedgerMQError as error:
                diary.told(error)
                await asyncio.sleep(0.3)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
