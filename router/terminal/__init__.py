"""The fleet in a terminal: `prefix-router top`, and `prefix-router explain` for one request.

`ask` speaks with replicas, `screen` and `words` make lines of what they say, `top` and `explain` are the command lines.
"""
