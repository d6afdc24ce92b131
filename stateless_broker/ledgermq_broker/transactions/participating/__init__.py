"""What is staged in one bundle, for one term: its batches, its offsets, its timed messages, and their copies."""
