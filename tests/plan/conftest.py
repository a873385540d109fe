"""Settings of hypothesis for the tests without device: fixed seeds, no clock."""

from __future__ import annotations

from hypothesis import settings

# A deadline per example fails on a busy machine; fixed seeds make a failure the same one
# everywhere.
settings.register_profile("plan", deadline=None, derandomize=True)
settings.load_profile("plan")
