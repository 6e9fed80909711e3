"""`prefix-router doctor`: whether a live worker's cache can help, and what to change.

`look` asks a worker what it says of itself, `probing` sends it the prompts of a probe, `command` is the command line;
`facts` holds what was learnt, `judge` and `findings` turn that into a verdict and advice, `report` prints it.
"""

from router.doctor.command import main

__all__ = ["main"]
