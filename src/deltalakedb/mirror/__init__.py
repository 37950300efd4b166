"""The mirror: ratified commits reach `_delta_log`, in order, once."""
