"""The scheduler: one graph over several backends. Decides (assign, split), then acts (run)."""
