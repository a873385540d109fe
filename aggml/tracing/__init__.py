"""Looking on: what ran when (timeline.py, drawn by picture.py); races between streams (race.py)."""
