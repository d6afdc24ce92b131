"""One module for each kind of schema: one value as a row of `value_typed`, or why it is none. Slow and exact: by it the
decoders of many values are judged, and it names what is wrong with a value. It runs in a child process.
"""
