"""Read what an owned ledger holds, and what a moved partition had before."""
