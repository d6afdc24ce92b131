"""Arguments that commands share, and what completes them."""
