"""Writing to a table: plain appends by our own Parquet writer, everything else by delta-rs."""
