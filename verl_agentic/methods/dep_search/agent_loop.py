"""The agent loop of dep_search."""

from verl_agentic.bridge.agent_loop import MethodAgentLoop
from verl_agentic.methods.dep_search import METHOD


class AgentLoop(MethodAgentLoop):
    method = METHOD
