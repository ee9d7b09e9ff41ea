"""Settings of the whole test suite."""

from hypothesis import settings

settings.register_profile("credo", derandomize=True, deadline=None)
settings.load_profile("credo")
