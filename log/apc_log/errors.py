"""Errors of the log.

ApcError
  LogError                the log failed; apc_persister.errors has those of writing and proving
    BundleUnreadable      a file that is no bundle of a run
  BodyUnreadable          an encrypted body and the available keys do not fit
  SearchUnusable          there is nothing to search for, or too much
"""

from apc_contracts.errors import ApcError


class LogError(ApcError):
    """The log failed."""


class BundleUnreadable(LogError):
    """A file that is no bundle of a run."""


class BodyUnreadable(ApcError):
    """An encrypted body cannot be read with the available keys, which is not the same as erased."""


class SearchUnusable(ApcError):
    """What is asked cannot be searched for."""
