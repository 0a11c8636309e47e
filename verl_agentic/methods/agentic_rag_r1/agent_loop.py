"""The agent loop of agentic_rag_r1."""

from verl_agentic.bridge.agent_loop import MethodAgentLoop
from verl_agentic.methods.agentic_rag_r1 import METHOD


class AgentLoop(MethodAgentLoop):
    method = METHOD
