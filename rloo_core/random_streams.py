"""Random streams keyed by what they are for, so that no generator state has to survive a crash.

seed_for(seed, "sampling", step, prompt, sample)  →  always the same number, whatever ran before.
"""

import hashlib

import torch


def seed_for(seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed for one use of randomness.

    Args:
        seed: The run's seed.
        purpose: What the numbers are for, e.g. "shuffle". Different purposes are independent.
        index: Step, epoch, prompt, sample: whatever tells this use from the others.

    Returns:
        An integer in [0, 2**63), a hash of all arguments.
    """
    key = "\x1f".join([str(seed), purpose, *map(str, index)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, purpose: str, *index: int) -> torch.Generator:
    """A CPU generator seeded with `seed_for(seed, purpose, *index)`."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *index))


def shuffled(count: int, seed: int, purpose: str, *index: int) -> list[int]:
    """A permutation of range(count), the same for the same key."""
    return torch.randperm(count, generator=generator_for(seed, purpose, *index)).tolist()
