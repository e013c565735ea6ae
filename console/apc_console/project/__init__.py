"""A new project: the files of `apc new`, and how they are written."""
