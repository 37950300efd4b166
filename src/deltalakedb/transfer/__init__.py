"""Importing, following, verifying, exporting and rolling back: tables between plain Delta and the catalog."""
