"""Refuse batches of a stream before the broker sees them, and put what was refused into its answers."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import compress
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_broker.paths.received_batches import produced, split_payload
from ledgermq_ledger.keys import METADATA_TOPIC

Refusals = Sequence[pb.Error | None]
"""One for each batch: why it is refused, None if it is allowed."""


async def judged(
    requests: AsyncIterator[Any],
    judge: Callable[[Frame[Any]], Refusals],
    call: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
    sender: str = "",
    look: Callable[[Any], None] = lambda answer: None,
) -> AsyncIterator[Any]:
    """Judge each frame when it arrives, call with what is allowed, and yield the answers as they come, each by the
    number of its frame. `sender`: for the frames that go on. `look` sees each answer of the call. Raises what `judge`
    raises, and CorruptFrame.
    """
    refused: dict[int, deque[Refusals | None]] = {}
    """By number of the frame. Frames without a number are answered in their order."""

    async def allowed() -> AsyncIterator[Any]:
        async for frame in requests:
            refusals = judge(frame)
            if is_refused := any(refusal is not None for refusal in refusals):
                frame = allowed_part(frame, refusals)
            refused.setdefault(frame.header.number, deque()).append(refusals if is_refused else None)
            yield replace(frame, sender=sender) if sender else frame

    async with aclosing(call(allowed())) as answers:  # type: ignore[type-var]
        async for answer in answers:
            look(answer)
            of_number = refused[answer.number]
            refusals = of_number.popleft()
            if not of_number:
                del refused[answer.number]
            yield answer if refusals is None else merged(answer, refusals)


def allowed_part(frame: Frame[Any], refusals: Refusals) -> Frame[Any]:
    """Return the frame without its refused batches. Raises CorruptFrame.

    If no batch is left, one that the broker surely refuses takes their place, so that the frame keeps
    its turn among the answers of its stream.
    """
    batches = list(frame.header.batches)
    pieces = split_payload(produced(frame.header), frame)
    header = type(frame.header)()
    header.CopyFrom(frame.header)
    del header.batches[:]
    header.batches.extend(batch for batch, refusal in zip(batches, refusals, strict=True) if refusal is None)
    if not header.batches:
        stand_in = pb.ProduceBatch(topic=METADATA_TOPIC)
        if isinstance(header, pb.StageHeader):
            header.ClearField("transaction")
            header.batches.append(pb.StageBatch(batch=stand_in))
        else:
            header.batches.append(stand_in)
    stays = [refusal is None for refusal in refusals]
    return Frame(header, list(compress(pieces, stays)), frame.sender, tuple(compress(frame.records, stays)))


def merged(answer: Any, refusals: Refusals) -> Any:
    """Return an answer with one result for each batch that was sent, refused ones included. The results
    of `answer` are of the others, in order.
    """
    own = iter(answer.results)
    kind = answer.DESCRIPTOR.fields_by_name["results"].message_type._concrete_class
    results = [next(own) if refusal is None else kind(error=refusal) for refusal in refusals]
    whole = type(answer)()
    whole.CopyFrom(answer)
    del whole.results[:]
    whole.results.extend(results)
    return whole
