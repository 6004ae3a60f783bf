"""The words that fill the slots of a post: people, times, feelings. Objects and plans belong to a story frame."""

WOMEN = (
    "agnes amara bianca clara dora edith elif freya greta hilda ines jana kira leila mabel nora olga petra rosa sigrid "
    "tilda ursula wanda yuki"
).split()
MEN = (
    "anton bruno cyrus dmitri emil felix gustav hugo igor jasper kofi leon milo nils oscar pablo quentin rafael stefan "
    "tariq ulrich victor walter yusuf"
).split()

RELATIONS_OF_WOMEN = ["sister", "aunt", "grandmother", "niece"]
RELATIONS_OF_MEN = ["brother", "uncle", "grandfather", "nephew"]
RELATIONS_OF_ANYONE = ["neighbour", "boss", "roommate", "cousin", "teacher", "coach", "landlord", "dentist"]

MONTHS = "january february march april may june july august september october november december".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()

FEELINGS = (
    "furious amused ashamed proud jealous confused relieved lonely nervous guilty thrilled exhausted hopeful bitter "
    "speechless grateful"
).split()

NAMES = [*WOMEN, *MEN]
RELATIONS = [*RELATIONS_OF_WOMEN, *RELATIONS_OF_MEN, *RELATIONS_OF_ANYONE]
TIMES = [*MONTHS, *DAYS]


def with_preposition(time: str) -> str:
    """`in march`, `on sunday`."""
    return f"in {time}" if time in MONTHS else f"on {time}"


def pronouns(name: str) -> dict[str, str]:
    """The words a template may use for this person: he, him, his."""
    if name in WOMEN:
        return {"he": "she", "him": "her", "his": "her"}
    return {"he": "he", "him": "him", "his": "his"}


def relations_of(name: str) -> list[str]:
    """What a person of this name can be to the one who writes."""
    return (RELATIONS_OF_WOMEN if name in WOMEN else RELATIONS_OF_MEN) + RELATIONS_OF_ANYONE
