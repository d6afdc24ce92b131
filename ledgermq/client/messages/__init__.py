"""Messages and their parts, as plain values."""
