"""Clients of the services that rollouts call."""
