"""One term of ownership of a ledger, and how its segments are put."""
