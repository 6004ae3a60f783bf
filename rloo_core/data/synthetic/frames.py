"""The stories a post can tell. A frame is one kind of mishap: how people tell it, and how a summary puts it.

Slots: {relation} {name} {object} {when} {feeling} {ask} are the facts of a post; {object2} is a distractor from the
same frame; {he} {him} {his} refer to {name}. In `event` and `event_vague`, {when} brings its own leading space or is
empty.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """One kind of story.

    Attributes:
        name: What `facts["event"]` says.
        subreddit: Where it is posted.
        objects: Values of the object slot.
        asks: What the writer thinks of doing; each fits after "should i".
        event: How a summary puts what happened, after the person.
        event_vague: The same without the object.
        mark: Words that both forms of the event hold and no other frame's.
        titles: Phrasings of the title.
        stories: Phrasings of what happened; each names relation, name, object and time.
        asides: Sentences that hold another object of the same kind.
        colours: Sentences that only entertain.
    """

    name: str
    subreddit: str
    objects: tuple[str, ...]
    asks: tuple[str, ...]
    event: str
    event_vague: str
    mark: str
    titles: tuple[str, ...]
    stories: tuple[str, ...]
    asides: tuple[str, ...]
    colours: tuple[str, ...]


FRAMES: dict[str, Frame] = {
    frame.name: frame
    for frame in (
        Frame(
            name="loan",
            subreddit="neighbours",
            objects=("ladder", "drill", "lawnmower", "wheelbarrow", "tent", "canoe", "telescope", "hammock"),
            asks=("ask for it back", "buy a new one", "climb over the fence", "send a bill"),
            event="borrowed my {object}{when} and never returned it",
            event_vague="borrowed something{when} and never returned it",
            mark="never returned it",
            titles=("my {object} has a new home", "one hour, {he} said", "the {object} that never came back"),
            stories=(
                "my {relation} {name} came over {when} and took my {object} home, just for one hour.",
                "{when} i lent my {object} to my {relation} {name}. it has not been seen since.",
                "my {relation} {name} needed my {object} {when}. that hour never ended.",
            ),
            asides=("{he} already has my {object2}.", "the {object2} went the same way once."),
            colours=("i can see it from my kitchen.", "there is even a sticker on it now.", "i wave, {he} waves."),
        ),
        Frame(
            name="speech",
            subreddit="weddings",
            objects=("penguins", "taxes", "gravity", "cheese", "volcanoes", "spreadsheets", "pigeons", "glaciers"),
            asks=("warn the guests", "write a poem", "fake a cough", "hire an actor"),
            event="wants a wedding speech about {object}{when}",
            event_vague="wants a wedding speech{when}",
            mark="wants a wedding speech",
            titles=("a speech about {object}", "the worst wedding speech ever", "who marries like that"),
            stories=(
                "my {relation} {name} gets married {when} and i give the speech. the only topic allowed is {object}.",
                "{when} is the wedding of my {relation} {name}, and {he} wants my speech to be about {object}.",
                "i promised my {relation} {name} a speech about {object}. the wedding is {when}.",
            ),
            asides=("i only know things about {object2}.", "last time it was {object2} and nobody laughed."),
            colours=("the band has quit.", "there will be two hundred guests.", "i have four minutes and no jokes."),
        ),
        Frame(
            name="job",
            subreddit="careers",
            objects=("lisbon", "oslo", "toronto", "nairobi", "kyoto", "dublin", "lima", "vienna"),
            asks=("take it", "ask for more", "stay here", "flip a coin"),
            event="offered me a job{when} but it is in {object}",
            event_vague="offered me a job{when} but it is far away",
            mark="offered me a job",
            titles=("a job in {object}", "the offer of my life, far away", "do i move to {object}"),
            stories=(
                "{when} my {relation} {name} offered me a job. good pay, nice desk, but it is in {object}.",
                "my {relation} {name} called {when} with a job offer in {object}.",
                "there is a job for me in {object}, says my {relation} {name}, who wrote to me {when}.",
            ),
            asides=("i just signed a lease in {object2}.", "my whole life is in {object2}."),
            colours=(
                "my plants would not survive it.",
                "the desk has a view of the sea.",
                "i own nine boxes of books.",
            ),
        ),
        Frame(
            name="cat",
            subreddit="cats",
            objects=("salmon", "tuna", "shrimp", "sardines", "meatballs", "yoghurt", "bacon", "anchovies"),
            asks=("cook better", "visit every day", "get a second cat", "lock the window"),
            event="lured my cat away with {object}{when}",
            event_vague="lured my cat away{when}",
            mark="lured my cat away",
            titles=("my cat left me for {object}", "the cat has moved out", "how {object} ruined my home"),
            stories=(
                "my cat moved in with my {relation} {name} {when}. the reason is {object}, served warm.",
                "{when} my {relation} {name} put out a plate of {object}, and my cat has lived there since.",
                "it took my {relation} {name} one bowl of {object} to win my cat over {when}.",
            ),
            asides=("at my place there was only {object2}.", "i tried {object2}, without success."),
            colours=("the cat looks at me like a stranger.", "i found a farewell mouse.", "the basket is still warm."),
        ),
        Frame(
            name="contest",
            subreddit="cooking",
            objects=("goulash", "lasagna", "curry", "dumplings", "pancakes", "chowder", "paella", "strudel"),
            asks=("tell the jury", "hide my recipes", "enter next year", "demand the medal"),
            event="won the recipe contest{when} with my {object}",
            event_vague="won the recipe contest{when}",
            mark="won the recipe contest",
            titles=("the {object} was mine", "a stolen recipe", "who really made that {object}"),
            stories=(
                "my {relation} {name} won the recipe contest {when}. with my {object}, word for word.",
                "{when} the jury gave first prize to my {relation} {name} for {object} made from my notes.",
                "i gave my {object} recipe to my {relation} {name}, and {when} {he} won the contest with it.",
            ),
            asides=("my own {object2} came last.", "the {object2} is next, i know it."),
            colours=("the secret is nutmeg.", "there was a brass band.", "{he} even copied my spelling mistakes."),
        ),
        Frame(
            name="laptop",
            subreddit="college",
            objects=("coffee", "lemonade", "cocoa", "paint", "glue", "ketchup", "syrup", "champagne"),
            asks=("beg for mercy", "write on paper", "play ill", "dry it in rice"),
            event="spilled {object} on my laptop{when} before the exam",
            event_vague="ruined my laptop{when} before the exam",
            mark="before the exam",
            titles=("{object} in my laptop", "no laptop, no exam", "does {object} ever dry"),
            stories=(
                "my exam is near, and {when} my {relation} {name} spilled {object} all over my laptop.",
                "{when} a mug of {object} met my laptop. the hand belonged to my {relation} {name}. the exam is near.",
                "my {relation} {name} toasted my exam {when} and half of the {object} went into my laptop.",
            ),
            asides=("there was {object2} in it once and it lived.", "{he} cleaned it with {object2}."),
            colours=("the screen shows only stripes.", "it hums a sad song.", "all my notes are in there."),
        ),
        Frame(
            name="music",
            subreddit="roommates",
            objects=("trumpet", "bagpipes", "tuba", "banjo", "drums", "cello", "flute", "xylophone"),
            asks=("buy earplugs", "form a band", "move out", "call the police"),
            event="began to play the {object} at midnight{when}",
            event_vague="began to play at midnight{when}",
            mark="began to play",
            titles=("the {object} at midnight", "i have not slept", "thin walls and a {object}"),
            stories=(
                "{when} my {relation} {name} found a {object} in the attic. {he} plays it at midnight.",
                "my {relation} {name} took up the {object} {when} and can only practise at midnight.",
                "every midnight i hear the {object}. it is my {relation} {name}, who began {when}.",
            ),
            asides=("the {object2} was quieter.", "{he} also looks at a {object2} online."),
            colours=("there is only one song.", "the dog sings along.", "my pillow does not help."),
        ),
        Frame(
            name="date",
            subreddit="dating",
            objects=("parrot", "ferret", "lawyer", "python", "hamster", "tortoise", "goat", "clown"),
            asks=("plan a second one", "fake a headache", "change my number", "propose at once"),
            event="brought a {object} to our first date{when}",
            event_vague="brought company to our first date{when}",
            mark="to our first date",
            titles=("table for two and a {object}", "my first date with a {object}", "nobody warned me"),
            stories=(
                "{when} i had a first date with {name}, who is also my {relation}. {he} brought a {object}.",
                "first date {when}, candles, pasta, my {relation} {name}, and a {object} on the third chair.",
                "my {relation} {name} asked me out {when} and came to the table with a {object}.",
            ),
            asides=("i once dated someone with a {object2}.", "the waiter took it for a {object2}."),
            colours=("it ate my bread.", "we had a lovely talk, the three of us.", "the kiss was awkward."),
        ),
        Frame(
            name="train",
            subreddit="travel",
            objects=("passports", "suitcases", "tickets", "skis", "sandwiches", "maps", "keys", "sunglasses"),
            asks=("cancel the trip", "go alone", "call the station", "search every wagon"),
            event="lost our {object}{when} on the night train",
            event_vague="lost everything{when} on the night train",
            mark="on the night train",
            titles=("where are our {object}", "night train, never again", "our {object} travel without us"),
            stories=(
                "{when} i took the night train with my {relation} {name}. {he} left our {object} on board.",
                "my {relation} {name} had one task {when} on the night train: watch our {object}. they are gone.",
                "our {object} left with the night train {when}, because my {relation} {name} fell asleep.",
            ),
            asides=("at least we still have the {object2}.", "the guard found only some {object2}."),
            colours=("the hotel does not believe us.", "a nun lent me her blanket.", "the train is now abroad."),
        ),
        Frame(
            name="garden",
            subreddit="gardening",
            objects=("tulips", "roses", "cabbages", "pumpkins", "lettuce", "carrots", "radishes", "orchids"),
            asks=("build a wall", "plant cacti", "forgive and forget", "release the frogs"),
            event="dug up my {object}{when} to make a pond",
            event_vague="dug up my garden{when} to make a pond",
            mark="to make a pond",
            titles=("a pond instead of {object}", "goodbye, dear {object}", "there is a hole in my garden"),
            stories=(
                "{when} my {relation} {name} dug a pond where my {object} stood. nobody had asked for a pond.",
                "i came home {when} to a pond. my {relation} {name} had dug up all my {object}.",
                "my {relation} {name} thought a pond would be a nice surprise and dug up my {object} {when}.",
            ),
            asides=("only the {object2} were spared.", "{he} planted {object2} as an apology."),
            colours=("a duck has moved in.", "there is mud up to the door.", "it was the prettiest bed in town."),
        ),
        Frame(
            name="market",
            subreddit="collectors",
            objects=("records", "comics", "stamps", "trophies", "sneakers", "teapots", "puppets", "postcards"),
            asks=("find the buyer", "sell the sofa", "laugh about it", "start from zero"),
            event="sold my {object}{when} at the flea market",
            event_vague="sold my things{when} at the flea market",
            mark="at the flea market",
            titles=("my {object} for nine euros", "all my {object}, gone", "sold without asking"),
            stories=(
                "my {relation} {name} wanted to tidy up {when} and sold all my {object} at the flea market.",
                "{when} i saw my own {object} at the flea market. behind the table sat my {relation} {name}.",
                "my {object} took years. my {relation} {name} sold them at the flea market {when}, for nine euros.",
            ),
            asides=("{he} kept the {object2}.", "i would have given away the {object2}."),
            colours=("{he} bought me a waffle with the money.", "some of it was signed.", "the shelf looks so empty."),
        ),
        Frame(
            name="classes",
            subreddit="hobbies",
            objects=("yoga", "tango", "karate", "opera", "pottery", "judo", "ballet", "fencing"),
            asks=("break a leg", "give it a try", "invite the whole office", "hide in the sauna"),
            event="signed me up for {object} classes{when}",
            event_vague="signed me up for classes{when}",
            mark="signed me up",
            titles=("me and {object}", "i never asked for {object}", "a gift with sore muscles"),
            stories=(
                "as a gift my {relation} {name} signed me up for {object} classes {when}.",
                "{when} a letter came: i am enrolled in {object} classes, signed by my {relation} {name}.",
                "my {relation} {name} thinks i need a hobby, so {when} {he} put me down for {object}.",
            ),
            asides=("i would have liked {object2}.", "i still limp from {object2}."),
            colours=("i own no suitable trousers.", "the others are seven years old.", "there will be a show."),
        ),
    )
}
