"""Seeds torch before each test, since networks are initialized from its global random state."""

from __future__ import annotations

import pytest
import torch

from credo.seeding import seeded


@pytest.fixture(autouse=True)
def _same_start_for_every_test():
    with seeded(0, torch.device("cpu")):
        yield
