"""Every test starts from the same random state, in float64 unless it says otherwise."""

import pytest
import torch


@pytest.fixture(autouse=True)
def reproducible_float64():
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
