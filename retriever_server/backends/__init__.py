"""Search backends; they know passages and queries, nothing of HTTP."""
