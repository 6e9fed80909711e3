"""`prefix-router replay`: a trace of requests through the router's own decision code, against modelled workers.

`trace` and `generate` give the requests, `worker` and `cache` model the engines, `fleet` runs the events, `product`,
`work` and `peers` are the rules, `measure`, `tables` and `page` say what came of it, `command` is the command line.
"""

from router.replay.command import main

__all__ = ["main"]
