"""The language of what agents write."""

from pydantic import field_validator

from apc_bus.settings.base import ApcSettings


class LanguageSettings(ApcSettings):
    """The language by which words are reduced to their stems: in relevance, and in the search of the memory."""

    language: str = "english"
    """A language of Snowball (english, german, french, …), or `none`: words are compared as they are written."""

    @field_validator("language")
    @classmethod
    def _check_language(cls, language: str) -> str:
        import snowballstemmer  # all of its languages, for the few who choose one

        known = ["none", *snowballstemmer.algorithms()]
        if language not in known:
            raise ValueError(f"{language!r} has no stemmer: use one of {', '.join(known)}")
        return language
