"""Parts of a producer's partition: its phases, and the compression of its batches."""
