"""What one kernel does with its time: hardware counters, power under load, and its warp roles over time.

``scripts/profile.py`` runs it.
"""
