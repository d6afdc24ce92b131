"""What concerns a whole process: its log, its signals, its threads, modules that it lacks."""
