"""Clients that people use, each in an environment of its own, against a real router over simulated workers.

`catalogue` lists them, `installing` makes their environments, `programs` are what runs there, `running` plays them and
looks at the router's decisions, `command` is the command line: `python -m loadtest.clients`, or `scripts/clients`.
"""
