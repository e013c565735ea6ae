"""Numbers of things in words."""


def numbered(count: int, one: str, many: str | None = None) -> str:
    """Return the number with the noun in singular or plural; the plural without `many` is `one` and an s."""
    return f"1 {one}" if count == 1 else f"{count:,} {many or one + 's'}"
