"""Run filter functions beside the broker: a process for each function, with a bound of time."""
