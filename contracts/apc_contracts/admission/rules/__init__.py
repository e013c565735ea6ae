"""The rules of admission, one module a group of refusal codes, and the order in which they object."""
