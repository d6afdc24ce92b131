"""Handlers: functions that are called with the messages of a group, many at a time, in the order
that they request.
"""
