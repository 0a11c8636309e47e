"""Passage vectors as faiss indexes: kinds, streaming assembly, search with exact tie order, advice and tuning."""
