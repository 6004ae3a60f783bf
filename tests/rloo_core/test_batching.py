from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rloo_core.batching import step_indices, token_budget_batches


@given(st.lists(st.integers(1, 50), min_size=0, max_size=40), st.integers(1, 200), st.integers(1, 4))
def test_every_item_once_and_no_batch_over_the_budget(lengths, budget, rows_each):
    def held(batch):
        return len(batch) * rows_each * max(lengths[i] for i in batch)

    batches = token_budget_batches(len(lengths), held, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(held(batch) <= budget or len(batch) == 1 for batch in batches)
    assert all(held([*batch, min(other)]) > budget for batch, other in pairwise(batches))  # none could hold more


def test_a_batch_may_be_as_large_as_the_budget():
    assert token_budget_batches(3, lambda batch: 5 * len(batch), 10) == [[0, 1], [2]]


@given(st.integers(1, 9), st.integers(1, 12))
def test_each_epoch_sees_every_item_once(count, batch_size):
    steps = count  # count * batch_size items: whole epochs, batch_size of them
    seen = [i for step in range(steps) for i in step_indices(step, batch_size, count, 0, "order")]
    assert set(Counter(seen).values()) == {batch_size}
    for epoch in range(batch_size):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_the_order_depends_on_seed_purpose_and_epoch():
    orders = {
        tuple(step_indices(step, 20, 20, seed, purpose)) for step in (0, 1) for seed in (0, 1) for purpose in ("a", "b")
    }
    assert len(orders) == 8
