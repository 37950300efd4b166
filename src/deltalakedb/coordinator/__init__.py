"""From a request to a published commit: gate, guard, commit, publish, checkpoint, clean up.

Every commit takes this way, whether a table operation, a transaction, the HTTP service, Spark, an adoption, a
resolution or the fence asks for it. Conflicts are decided in `commit/`, and log files are written in
`mirror/`; this room only says in which order, and by which settings.
"""
