"""Services beside the database: commits of other engines, ratified over HTTP."""
