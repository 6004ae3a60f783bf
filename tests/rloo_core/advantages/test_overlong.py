import pytest
import torch
from torch.testing import assert_close

from rloo_core.advantages import soft_overlong_penalty


def test_the_slope_before_the_limit():
    # limit 20, buffer 8: free up to 12, then 1/8 a token, -1 at 20 and beyond
    lengths = torch.tensor([1, 12, 13, 16, 19, 20, 25])
    assert_close(soft_overlong_penalty(lengths, 20, 8), torch.tensor([0.0, 0.0, -0.125, -0.5, -0.875, -1.0, -1.0]))


@pytest.mark.parametrize("buffer", [0, 21])
def test_a_buffer_that_is_no_part_of_the_limit(buffer):
    with pytest.raises(ValueError, match=rf"1 to 20 tokens; got {buffer}"):
        soft_overlong_penalty(torch.tensor([1]), 20, buffer)
