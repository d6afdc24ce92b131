"""The consumer, from streams of batches to messages. Knows nothing of producers."""
