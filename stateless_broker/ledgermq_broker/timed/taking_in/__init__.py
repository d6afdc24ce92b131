"""Take delayed messages in: judge whether they may wait, and store them in the intake of their bundle."""
