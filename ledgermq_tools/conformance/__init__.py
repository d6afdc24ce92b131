"""Check a client that is written in another language: `ledgermq conformance COMMAND…`.

Two real brokers run in this process. Between them and the client stands a port that redirects, fails, doubles and
delays as a plan says (`brokers`). What the client asks is judged by pure rules (`judging`); what it stored and printed
is compared with what it should have (`checks`).
"""
