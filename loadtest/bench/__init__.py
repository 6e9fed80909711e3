"""Measures what a request costs in this router, in its peers and in a plain proxy, on the same work."""
