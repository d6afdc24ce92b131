"""What concerns all calls to brokers: the time, and for whom they are made."""
