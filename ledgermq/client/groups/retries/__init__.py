"""Messages that are refused: held back, delivered again, or moved to topics for it."""
