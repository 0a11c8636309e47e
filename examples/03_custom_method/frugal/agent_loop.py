"""What verl instantiates for each session."""

from frugal import METHOD
from verl_agentic.bridge.agent_loop import MethodAgentLoop


class AgentLoop(MethodAgentLoop):
    method = METHOD
