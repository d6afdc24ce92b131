"""The consumer: turns streams of batches into messages. Does not depend on producers."""
