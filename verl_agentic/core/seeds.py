"""Request seeds that depend on what is asked and not on when: so that a run repeats."""

from __future__ import annotations

import hashlib

SEED_BITS = 63


def request_seed(run_seed: int, step: int, item: str, session: int, turn: int, split: str = "train") -> int:
    """Seed of one generation request.

    verl's trainer has no per-request seed and draws random ids for its prompts, so the seed is derived from what
    identifies the request across runs.

    Args:
        run_seed: the run's own seed.
        step: trainer step (`global_steps`).
        item: what identifies the question, its text included: indices repeat across data files.
        session: rollout number within the group, in [0, n).
        turn: generation call within the session.
        split: the item's data split; each has its own stream.

    Returns:
        An integer in [0, 2**63).
    """
    key = f"{run_seed}/{step}/{item}/{session}/{turn}/{split}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> (64 - SEED_BITS)
