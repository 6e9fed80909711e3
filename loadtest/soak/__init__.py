"""A long run of mixed load on a small deployment whose parts are killed and restarted all along: does anything leak?"""
