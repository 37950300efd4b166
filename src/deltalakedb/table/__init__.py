"""The face: `deltalake`'s names, answered from SQL."""
