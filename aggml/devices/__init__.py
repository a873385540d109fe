"""Devices that come with the package. Nothing is imported here: the registry does, on first use."""
