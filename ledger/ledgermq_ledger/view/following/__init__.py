"""A ledger followed from the store alone, with no broker."""
