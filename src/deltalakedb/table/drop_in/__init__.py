"""``deltalake``'s own classes and functions over SQL-backed tables."""
