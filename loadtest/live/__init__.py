"""Routers under the traffic of the replay, over real HTTP, before simulated workers whose time is what counts."""
