"""The modules of the package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import credo

LEFT_OUT = ("credo.__main__", "credo._triton_kernels", "credo.methods._triton_newton")
"""It runs when it is imported; it needs Triton."""


def credo_modules() -> Iterator[ModuleType]:
    """Import every module, but for those of optional libraries that are not installed."""
    for found in pkgutil.walk_packages(credo.__path__, "credo."):
        if found.name in LEFT_OUT:
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("credo"):
                raise
