"""Agentic search reinforcement learning on verl: methods, recipes and a world small enough for a laptop."""

__version__ = "0.1.0"
