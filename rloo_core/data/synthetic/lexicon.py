"""The words that fill the slots of a post: people, times, feelings. Objects and plans belong to a story frame."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words(
    "agnes amara bianca clara dora edith elif freya greta hilda ines jana kira leila mabel nora olga petra rosa sigrid "
    "tilda ursula wanda yuki"
)
MEN = _words(
    "anton bruno cyrus dmitri emil felix gustav hugo igor jasper kofi leon milo nils oscar pablo quentin rafael stefan "
    "tariq ulrich victor walter yusuf"
)

RELATIONS_OF_WOMEN = _words("sister aunt grandmother niece")
RELATIONS_OF_MEN = _words("brother uncle grandfather nephew")
RELATIONS_OF_ANYONE = _words("neighbour boss roommate cousin teacher coach landlord dentist")

MONTHS = _words("january february march april may june july august september october november december")
DAYS = _words("monday tuesday wednesday thursday friday saturday sunday")

FEELINGS = _words(
    "furious amused ashamed proud jealous confused relieved lonely nervous guilty thrilled exhausted hopeful bitter "
    "speechless grateful"
)

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
