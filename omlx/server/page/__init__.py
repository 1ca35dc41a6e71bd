"""The admin page: its files, and signing in to it.

Knows nothing about what the page shows; that comes from the endpoints below /admin/api.
"""
