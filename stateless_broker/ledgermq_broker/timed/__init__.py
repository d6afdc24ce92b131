"""Serve timed messages in one broker: take them in, deliver each when its time has come, recall and
list them. The pure state of a bundle is in the package `timers`.
"""
