"""Find out who calls, and let through what the access rules allow (docs/decisions/0044, 0045, 0046)."""
