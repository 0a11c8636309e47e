"""A passage retriever for search agents; runs without verl. Start with `python -m retriever_server --help`."""
