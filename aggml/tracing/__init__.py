"""Observers of streams: timelines (timeline.py, picture.py) and the race checker (race.py)."""
