"""What a transaction sends by: its records, the lane of its id, and the staged batches."""
