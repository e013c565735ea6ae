"""The language of what agents write."""

from pydantic import field_validator

from apc_bus.settings.setting_sources import ApcSettings


class LanguageSettings(ApcSettings):
    """Language for stemming words, in relevance and in the search of memory."""

    language: str = "english"
    """A Snowball language (english, german, french, …), or `none` to disable stemming."""

    @field_validator("language")
    @classmethod
    def _check_language(cls, language: str) -> str:
        import snowballstemmer  # all of its languages, for the few who choose one

        known = ["none", *snowballstemmer.algorithms()]
        if language not in known:
            raise ValueError(f"{language!r} has no stemmer: use one of {', '.join(known)}")
        return language
