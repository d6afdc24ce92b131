"""Queue groups: many members share each partition, and every message is leased to one of them."""
