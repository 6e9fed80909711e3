"""Python's collector of cyclic garbage, kept from looking at everything that lives while requests are served.

A full map of one-block prompts is 200,000 objects, and a look at all of them stops the process for 70 to 100 ms. It is
garbage only in cycles that the collector is for, which a closed connection leaves behind, some ten objects each, and
the map with each worker that goes; so young objects are looked at as always, and old ones when nobody waits.
"""

from __future__ import annotations

import gc

# Of the middle generation's collections, after each of which some 7,000 more objects live than before: so many are
# worth a full one in a calm moment, and so many call for one at any moment.
CALM, AT_LATEST = 16, 100


def settle() -> None:
    """The start is over: what it made lives as long as the process, and need not be looked at again."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, AT_LATEST)


def look_around(active: int) -> bool:
    """With no requests active, collect everything if enough has come together; whether that was done."""
    if active or gc.get_count()[2] < CALM:
        return False
    gc.collect()
    return True
