"""The seam between file actions and rows of the catalog: only this package knows how files are stored.

There are three ways, all with the same result: `windows` encodes a checkpoint's files by columns, `tails` a
batch of commits by columns, and `changes` applies commits file by file, which always works. When the storage
of files is replaced (STORAGE.md), one function from actions to rows takes the place of this package.
"""
