"""verl on a machine without an accelerator: a CPU platform and an embedded rollout engine on transformers.

Importing this package loads neither torch nor verl. `verl_agentic.cpu.hooks.register()` puts the platform and the
rollout named `hf` into verl's registries; `verl_agentic.cpu.engine.Engine` also works alone, without verl and ray.
"""
