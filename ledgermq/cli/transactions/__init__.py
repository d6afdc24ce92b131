"""Commands about transactions and half messages."""
