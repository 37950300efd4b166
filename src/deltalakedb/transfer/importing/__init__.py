"""Importing: an existing Delta table's log becomes rows of the catalog; its files stay untouched.

`api` has the public functions, `pipeline` the phases (plan, load, verify, make visible), `loader` writes
batches with their receipts, and `encoding` turns file actions into rows.
"""
