"""Delta's protocol as values and rules: actions, schemas, predicates, features. No files, no SQL."""
