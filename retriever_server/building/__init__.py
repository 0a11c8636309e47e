"""Building an index folder: a resumable workplace, preflight, passages, encoding in chunks, assembly, manifest."""
