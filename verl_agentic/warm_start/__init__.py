"""Before reinforcement learning: traces of a teacher or of an oracle, and a policy trained on them."""
