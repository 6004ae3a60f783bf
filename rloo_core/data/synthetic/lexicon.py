"""The words that fill the slots of a post: people, times, feelings. Objects and plans belong to a story frame."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words("agnes bianca dora elif greta hilda kira mabel nora petra wanda yuki")
MEN = _words("anton bruno emil felix gustav hugo igor milo oscar pablo victor walter")

RELATIONS_OF_WOMEN = _words("sister aunt niece")
RELATIONS_OF_MEN = _words("brother uncle nephew")
RELATIONS_OF_ANYONE = _words("neighbour boss roommate cousin teacher dentist")

MONTHS = _words("january march may july september november")
DAYS = _words("monday tuesday wednesday thursday friday saturday sunday")

FEELINGS = _words("furious amused ashamed proud jealous relieved lonely nervous guilty hopeful")

NAMES = (*WOMEN, *MEN)
RELATIONS = (*RELATIONS_OF_WOMEN, *RELATIONS_OF_MEN, *RELATIONS_OF_ANYONE)
TIMES = (*MONTHS, *DAYS)


def with_preposition(time: str) -> str:
    """`in march`, `on sunday`."""
    return f"in {time}" if time in MONTHS else f"on {time}"


def pronouns(name: str) -> dict[str, str]:
    """The words a template may use for this person: he, him, his."""
    if name in WOMEN:
        return {"he": "she", "him": "her", "his": "her"}
    return {"he": "he", "him": "him", "his": "his"}


def relations_of(name: str) -> tuple[str, ...]:
    """What a person of this name can be to the one who writes."""
    return (RELATIONS_OF_WOMEN if name in WOMEN else RELATIONS_OF_MEN) + RELATIONS_OF_ANYONE
