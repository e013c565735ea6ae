"""Generate the tables of the reference pages from the code: `make reference` writes them, a test compares them.

A page keeps its own text. A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of
`pages.TABLES`.
"""
