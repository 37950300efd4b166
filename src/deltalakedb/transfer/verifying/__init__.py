"""Verification: is the catalog equal to the log? One verifier, five levels, one report.

`verify_table` compares a table of the catalog; `verify_loaded` compares rows that are not visible yet, or a
log elsewhere. `mirror.drift` has the checks of single commit files and checkpoints.
"""
