"""A server that the system starts at login and again after a crash: launchd or systemd.

Knows nothing about what servers do; the rest of omlx sees `service` only.
"""
