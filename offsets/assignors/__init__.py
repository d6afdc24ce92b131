"""Who is to hold which partition: pure functions from a `Problem` to a target."""
