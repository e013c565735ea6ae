"""Amounts on the command line of the benchmarks."""

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers from `least` on, with one clear error for anything else."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is too little or no whole number: give {least:,} or more")
        return value

    return read
