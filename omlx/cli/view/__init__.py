"""Views: functions from a snapshot to a rich renderable.

Know nothing about where the snapshot comes from.
"""
