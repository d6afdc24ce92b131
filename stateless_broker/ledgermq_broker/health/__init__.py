"""Health of a process: is it alive, is it ready, what is wrong; and the wait for a store that is down at the start."""
