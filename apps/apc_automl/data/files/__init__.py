"""Files that hold tables: what each kind of them needs to be read within bounds, and what holds none."""
