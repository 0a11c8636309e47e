"""Rows of verl data sets and retrieval corpora: schema, writers, validation."""
