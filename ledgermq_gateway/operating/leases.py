"""Work on queues over HTTP: lease messages, and say by their handles what became of them.

The gateway keeps no lease. A handle names its message and its lease, so any gateway takes the answer, and brokers
decide whether it still counts. A lease whose caller leaves during the wait is cut, and what it leased is returned; what
was sent to a caller that is gone comes again when its lease is over.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ledgermq.client.queues.leases.answering import ANSWERS_MAX, AnswerWord, LeaseAnswer, LeaseResult
from ledgermq.client.queues.leases.handles import caller_hash, lease_of_handle
from ledgermq.client.queues.leases.leasing import LeasedMessage
from ledgermq.errors import InvalidConfig
from ledgermq_gateway.http.call import Answer, Call
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.records.bodies import decode
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import READ_BYTES, RecordOut, size_of, unless_stopping
from ledgermq_gateway.resources.parameters import choice, position_of

LEASED_MAX = 1_000
TIME_MS_MAX = 43_200_000
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]


class LeaseIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages are wanted. `start`: where a new group begins: earliest, latest, a time, an age. `lease_ms`: how
    long they belong to the caller. `attempts_max`: deliveries of a message, then it goes to `<group>.dlq`, or is
    dropped with `dead_letters` false. `filter`: only messages that pass; the others are finished for the whole group,
    so all callers need the same one.
    """

    topics: Annotated[list[str], Meta(min_length=1, max_length=100)]
    max: Annotated[int, Meta(ge=1, le=LEASED_MAX)] = 50
    wait_ms: Annotated[int, Meta(ge=0)] = 3_000
    lease_ms: Annotated[int, Meta(ge=1_000, le=TIME_MS_MAX)] = 30_000
    start: str = "earliest"
    attempts_max: Annotated[int, Meta(ge=1, le=60)] = 5
    dead_letters: bool = True
    filter: str = ""


class LeasedOut(Struct, kw_only=True):
    """A message that belongs to the caller for `lease_ms` from now. `attempt`: the number of this delivery."""

    handle: str
    attempt: int
    lease_ms: int
    record: RecordOut


class LeasedMessages(Struct, kw_only=True):
    messages: list[LeasedOut]


class AnswerIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """What became of a leased message. `ack`: it is finished. `nack`: it comes again after `delay_ms`, and goes to the
    dead letters after its last attempt, with the text `error`. `return`: it comes again at once, and this delivery does
    not count. `extend`: its lease lasts `lease_ms` from now on; not given: as long as at first. `dead_letter`: it goes
    to the dead letters now.
    """

    handle: Annotated[str, Meta(min_length=1, max_length=2_000)]
    word: AnswerWord = "ack"
    delay_ms: TimeMs | None = None
    lease_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] | None = None
    error: str = ""


class AnswersIn(Struct, forbid_unknown_fields=True, kw_only=True):
    answers: Annotated[list[AnswerIn], Meta(min_length=1, max_length=ANSWERS_MAX)]


class AnswerOut(Struct, omit_defaults=True, kw_only=True):
    """`counts`: whether the answer counts, durably. `late`: it came too late: the message is no longer leased under
    this handle, and another caller has it, or had it.
    """

    counts: bool
    late: bool = False
    error: dict[Literal["code", "detail"], str] | None = None


class AnswersOut(Struct, kw_only=True):
    """In the order of the answers."""

    results: list[AnswerOut]


_lease_in = msgspec.json.Decoder(LeaseIn)
_answers_in = msgspec.json.Decoder(AnswersIn)


async def lease(call: Call) -> Answer:
    wanted: LeaseIn = decode(_lease_in, call.body)
    settings, group = call.service.settings, call.names["group"]
    if wanted.wait_ms > settings.wait_ms_max:
        raise Problem("INVALID_REQUEST", f"wait_ms is at most {settings.wait_ms_max}, not {wanted.wait_ms}")
    start: Any = position_of("start", wanted.start, call.service.sources.now_us())
    if isinstance(start, int):
        raise Problem("INVALID_REQUEST", "start of a queue is earliest, latest, a time or an age, not an offset")
    form = choice(call.query, "values", FORMS)

    def ask(wait_s: float) -> Coroutine[Any, Any, Sequence[LeasedMessage]]:
        return call.caller.client.queues.lease(
            wanted.topics,
            group,
            max_records=wanted.max,
            wait=wait_s,
            start=start,
            lease_s=wanted.lease_ms / 1000,
            attempts_max=wanted.attempts_max,
            dead_letters=wanted.dead_letters,
            filter=wanted.filter,
            caller=call.caller.principal,
        )

    call.share.take(READ_BYTES)
    wait_s = wanted.wait_ms / 1000
    with call.waiting() if wait_s else nullcontext():
        try:
            found = await (unless_stopping(call, ask, wait_s) if wait_s else ask(0.0))
        except InvalidConfig as error:
            raise Problem(error.code, error.message, status=400) from None
    try:
        call.share.take(2 * sum(size_of(each.message) for each in found))
    except Problem:
        await call.caller.client.queues.answer([LeaseAnswer(each.handle, "return") for each in found])
        raise
    return Answer(msgspec.json.encode({"messages": [_leased(each, form) for each in found]}))


def _leased(found: LeasedMessage, form: str) -> dict[str, Any]:
    return {
        "handle": found.handle,
        "attempt": found.attempt,
        "lease_ms": max(0, int(1000 * found.lease_s)),
        "record": msgspec.Raw(record_json(found.message, form)),
    }


async def answer(call: Call) -> Answer:
    given: AnswersIn = decode(_answers_in, call.body)
    group, caller = call.names["group"], caller_hash(call.caller.principal)
    answers = [_answer(each, number, group, caller) for number, each in enumerate(given.answers)]
    results = await call.caller.client.queues.answer(answers)
    shown = [_result(each) for each in results]
    if (failed := next((each.error for each in results if each.error is not None), None)) is not None:
        raise problem_of(failed, {"results": shown})
    return Answer(msgspec.json.encode(AnswersOut(results=shown)))


def _answer(given: AnswerIn, number: int, group: str, caller: int) -> LeaseAnswer:
    """Return what the client takes. Raises Problem for a handle that is not of this group and caller."""
    handle = lease_of_handle(given.handle)
    if handle.caller != caller:
        raise Problem("OTHER_CALLER", f"answer {number}: its message was leased to another caller; nothing was done")
    if handle.group != group:
        raise Problem("OTHER_GROUP", f"answer {number}: its message was leased for another group; nothing was done")
    if given.delay_ms is not None and given.word != "nack":
        raise Problem("INVALID_REQUEST", f"answer {number}: delay_ms belongs to nack, not to {given.word}")
    if given.lease_ms is not None and given.word != "extend":
        raise Problem("INVALID_REQUEST", f"answer {number}: lease_ms belongs to extend, not to {given.word}")
    time_ms = given.lease_ms if given.word == "extend" else given.delay_ms
    return LeaseAnswer(given.handle, given.word, None if time_ms is None else time_ms / 1000, given.error)


def _result(found: LeaseResult) -> AnswerOut:
    if found.error is None:
        return AnswerOut(counts=found.counts, late=not found.counts)
    return AnswerOut(counts=False, error={"code": problem_of(found.error).code, "detail": found.error.message})
