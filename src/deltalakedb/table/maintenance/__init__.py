"""Deleting files that are no longer needed, and looking after the log."""
