"""Registration of our agent loops and reward manager in verl's registries, by name and without importing them."""

from __future__ import annotations

from verl_agentic.methods import discover


def register_agent_loops() -> None:
    """Let `agent_name: METHOD` in a data row, or `rollout.agent.default_agent_loop=METHOD`, find our loops."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    for name in discover():
        _agent_loop_registry.setdefault(name, {"_target_": f"verl_agentic.methods.{name}.agent_loop.AgentLoop"})
