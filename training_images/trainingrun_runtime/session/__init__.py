"""What user code calls: the session, its loops, and when it saves."""
