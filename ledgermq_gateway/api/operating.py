"""Routes for operators: dead letters, unresolved messages, traces."""

from __future__ import annotations

from ledgermq_gateway.api.route import Body, Parameter, Route
from ledgermq_gateway.http.call import JSON
from ledgermq_gateway.operating import dead_letters, leases, queues, tracing, unresolved
from ledgermq_gateway.records.forms import VALUES
from ledgermq_gateway.resources.parameters import CURSOR, number, switch, text

_TIME = "a time with its zone (RFC 3339), or an age like 15m."


def operating_routes() -> list[Route]:
    """Return the routes for operators."""
    return [*_dead_letters(), *_unresolved(), _trace(), *_queues()]


def _queues() -> list[Route]:
    return [
        Route("GET", "/v1/queues", queues.list_queues, "Queue groups.", answers={JSON: queues.Queues}),
        Route("GET", "/v1/queues/{group}", queues.get_queue, "One queue group.", answers={JSON: queues.Queue}),
        Route(
            "POST",
            "/v1/queues/{group}/leases",
            leases.lease,
            "Lease messages of a queue group; each belongs to the caller for a time.",
            (VALUES,),
            Body({JSON: leases.LeaseIn}),
            {JSON: leases.LeasedMessages},
            ends_with_caller=True,
        ),
        Route(
            "POST",
            "/v1/queues/{group}/answers",
            leases.answer,
            "Say what became of leased messages, at any gateway.",
            body=Body({JSON: leases.AnswersIn}),
            answers={JSON: leases.AnswersOut},
        ),
        Route(
            "GET",
            "/v1/transactions",
            queues.list_transactions,
            "The newest transaction of each transactional id.",
            (switch("all", "Also those that are complete."),),
            answers={JSON: queues.Transactions},
        ),
    ]


def _dead_letters() -> list[Route]:
    at = "/v1/groups/{group}/dead-letters"
    return [
        Route(
            "GET",
            "/v1/dead-letters",
            dead_letters.list_letter_groups,
            "Groups that have a topic of dead letters.",
            answers={JSON: dead_letters.LetterGroups},
        ),
        Route(
            "GET",
            at,
            dead_letters.list_letters,
            "Dead letters of a group, in pages, in the order of each partition.",
            (
                Parameter("cursor", "Where to go on: `next` of the page before.", CURSOR),
                number("limit", "Most letters of the page.", 1, dead_letters.LISTED_MAX, dead_letters.LISTED),
                switch("settled", "Also letters that are redriven or dropped."),
                text("since", f"Only letters of this time or later: {_TIME}"),
                text("before", f"Only letters before this time: {_TIME}"),
                text("error", "Only letters whose last error has this text."),
                text("key", "Only letters with this key, as text."),
                text("key_base64", "The same, in base64."),
                text("topic", "Only letters that came from this topic."),
                VALUES,
            ),
            answers={JSON: dead_letters.Letters},
        ),
        Route(
            "GET",
            f"{at}/{{partition}}/{{offset}}",
            dead_letters.get_letter,
            "One dead letter, settled or not.",
            (VALUES,),
            answers={JSON: dead_letters.Letter},
        ),
        Route(
            "POST",
            f"{at}/redrive",
            dead_letters.redrive,
            "Send dead letters to be handled again, each once.",
            body=Body({JSON: dead_letters.RedriveIn}),
            answers={JSON: dead_letters.SettledLetters},
        ),
        Route(
            "POST",
            f"{at}/drop",
            dead_letters.drop,
            "Drop dead letters: lists and redrives leave them out.",
            body=Body({JSON: dead_letters.LettersIn}),
            answers={JSON: dead_letters.SettledLetters},
        ),
    ]


def _unresolved() -> list[Route]:
    at = "/v1/unresolved/{group}"
    return [
        Route(
            "GET",
            "/v1/unresolved",
            unresolved.list_check_groups,
            "Check groups that have, or had, unresolved messages.",
            answers={JSON: unresolved.CheckGroups},
        ),
        Route(
            "GET",
            at,
            unresolved.list_unresolved,
            "Half messages whose producers never answered, by id, in pages.",
            (
                switch("decided", "Also messages about which an operator has decided."),
                text("after", "Only ids after this one: the last of the page before."),
                number("limit", "Most messages of the page.", 1, unresolved.LISTED_MAX, unresolved.LISTED),
            ),
            answers={JSON: unresolved.UnresolvedList},
        ),
        Route(
            "GET",
            f"{at}/message",
            unresolved.get_unresolved,
            "One unresolved message with its records.",
            (Parameter("id", "Its transactional id.", {"type": "string"}, required=True), VALUES),
            answers={JSON: unresolved.UnresolvedContents},
        ),
        Route(
            "POST",
            f"{at}/commit",
            unresolved.commit,
            "Publish messages, each once. It cannot be undone.",
            body=Body({JSON: unresolved.CommitIn}),
            answers={JSON: unresolved.Decided},
        ),
        Route(
            "POST",
            f"{at}/rollback",
            unresolved.rollback,
            "Drop messages.",
            body=Body({JSON: unresolved.RollbackIn}),
            answers={JSON: unresolved.Decided},
        ),
    ]


def _trace() -> Route:
    return Route(
        "GET",
        "/v1/messages/trace",
        tracing.get_trace,
        "Where a message went: groups that have read it, and its copies in retry and dead-letter topics.",
        (
            Parameter("id", "Its id: TOPIC:PARTITION:OFFSET.", {"type": "string"}, required=True),
            number("timeout_ms", "For the search of one topic.", 1, tracing.TIMEOUT_MS_MAX, tracing.TIMEOUT_MS),
            VALUES,
        ),
        answers={JSON: tracing.Trace},
        also=(206,),
    )
