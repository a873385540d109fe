"""Observers of streams: timelines (timeline.py) and the race checker (race.py)."""
