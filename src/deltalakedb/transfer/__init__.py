"""Moving tables in and out of a catalog."""
