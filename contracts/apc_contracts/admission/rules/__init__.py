"""The rules of admission, one module per group of refusal codes, and the order in which they are checked."""
