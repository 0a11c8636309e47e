"""Hydra configuration files only: ``recipe/NAME.yaml``, and the defaults of our own keys in ``agentic/``."""
