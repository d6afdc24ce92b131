"""Seeds that fail on the present commit because of faults that were found and are not mended yet.

Each run shows them as failures and says so, but does not end with an error because of them. docs/bugs-found.md says
what is known of each. A seed leaves this list with its fault, and becomes a test.
"""

from __future__ import annotations

OPEN = {
    ("timers", 6): "a recalled message is delivered",
    ("timers", 9): "the loop turns without an end",
    ("timers", 213000018): "the loop turns without an end",
}
