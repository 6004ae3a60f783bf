"""Which rows go through a model together."""

from collections.abc import Callable, Sequence

from rloo_core.random_streams import shuffled

Held = Callable[[Sequence[int]], int]
"""How many tokens, padding included, a batch of some items holds (`layout.tokens_held`)."""


def token_budget_batches(count: int, held: Held, max_tokens: int) -> list[list[int]]:
    """Bin items of similar length so that no batch holds more than a budget of tokens.

    Args:
        count: Items there are.
        held: What a batch of some of them would hold.
        max_tokens: Budget of a batch. An item over the budget gets a batch alone.

    Returns:
        Indices of the items by batch, each batch in ascending order; every index once.
    """
    batches: list[list[int]] = []
    for index in sorted(range(count), key=lambda i: (held([i]), i)):
        if batches and held([*batches[-1], index]) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [sorted(batch) for batch in batches]


def step_indices(step: int, batch_size: int, count: int, seed: int, purpose: str) -> list[int]:
    """The items of one step: a walk through a fresh permutation each epoch, without remainder.

    The answer depends on nothing but the arguments, so a resumed run sees the items it would have seen.

    Args:
        step: Step, from 0.
        batch_size: Items a step.
        count: Items there are.
        seed: The stage's seed.
        purpose: Name of the random stream.

    Returns:
        Indices, `batch_size` of them. A batch that crosses the end of an epoch goes on in the next one.
    """
    items = range(step * batch_size, (step + 1) * batch_size)
    order = {epoch: shuffled(count, seed, purpose, epoch) for epoch in {i // count for i in items}}
    return [order[i // count][i % count] for i in items]
