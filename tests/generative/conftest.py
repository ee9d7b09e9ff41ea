"""Networks start from torch's own random numbers: every test of this folder starts from the same ones."""

from __future__ import annotations

import pytest
import torch

from credo.seeding import seeded


@pytest.fixture(autouse=True)
def _same_start_for_every_test():
    with seeded(0, torch.device("cpu")):
        yield
