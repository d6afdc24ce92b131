"""The phases of a producer's partition.

Phases, and what moves a queue from one to the next (`NEXT`):

                   asked             opened
    UNOPENED ────────────> OPENING ──────────> SENDING <────────── all answered ─┐
       ^  ^                  │                  │   │                            │
       │  └─── refused ──────┘                  │   └─ attempt failed ──> DRAINING
       │                                        │                            │
       │                                        └─ session broken ─┐         │ session broken
       └──────────────── all answered ── ENDING <──────────────────┴─────────┘

Numbering decides what a queue without a session does: it opens a new one (UNOPENED), needs none
(SENDING), or has lost the only one that it may use (OVER).
"""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    UNOPENED = "has no session and needs one"
    OPENING = "has requested a session from the owner"
    SENDING = "sends its batches"
    DRAINING = "an attempt failed: waits for all answers, then sends the window again"
    ENDING = "the session is broken: waits for all answers, then drops the session"
    OVER = "its only session has ended: every batch fails"


class Event(Enum):
    ASKED = auto()
    OPENED = auto()
    REFUSED = auto()
    """The owner granted no session."""
    FAILED = auto()
    """An attempt to send a batch; it may be repeated."""
    BROKEN = auto()
    """The session's numbering cannot go on."""
    ANSWERED = auto()
    """All batches that were on their way."""
    ENDED = auto()
    """The session ended while no batch is on its way."""
    ABANDONED = auto()
    """All batches failed, even those on their way."""


NEXT: dict[tuple[Phase, Event], Phase] = {
    (Phase.UNOPENED, Event.ASKED): Phase.OPENING,
    (Phase.UNOPENED, Event.OPENED): Phase.SENDING,
    (Phase.OPENING, Event.OPENED): Phase.SENDING,
    (Phase.OPENING, Event.REFUSED): Phase.UNOPENED,
    (Phase.SENDING, Event.FAILED): Phase.DRAINING,
    (Phase.SENDING, Event.BROKEN): Phase.ENDING,
    (Phase.SENDING, Event.ENDED): Phase.UNOPENED,
    (Phase.DRAINING, Event.FAILED): Phase.DRAINING,
    (Phase.DRAINING, Event.BROKEN): Phase.ENDING,
    (Phase.DRAINING, Event.ANSWERED): Phase.SENDING,
    (Phase.ENDING, Event.FAILED): Phase.ENDING,
    (Phase.ENDING, Event.BROKEN): Phase.ENDING,
    (Phase.ENDING, Event.ENDED): Phase.UNOPENED,
    (Phase.UNOPENED, Event.ABANDONED): Phase.UNOPENED,
    (Phase.OPENING, Event.ABANDONED): Phase.OPENING,  # its answer still comes
    (Phase.SENDING, Event.ABANDONED): Phase.UNOPENED,
    (Phase.DRAINING, Event.ABANDONED): Phase.UNOPENED,
    (Phase.ENDING, Event.ABANDONED): Phase.UNOPENED,
    (Phase.OVER, Event.ABANDONED): Phase.OVER,
}


class Numbering(Enum):
    """Source of the sequences of a queue's batches; the value is the queue's phase without a
    session.
    """

    NEW = Phase.UNOPENED
    """Sessions that are opened when they are needed."""
    NONE = Phase.SENDING
    """Batches have no sequence; only one is on its way at a time, because a retry could change the
    order.
    """
    GIVEN = Phase.OVER
    """One session that was decided before. No other follows it."""
