"""The vocabulary of synthetic chats: words and sentence patterns, by subject.

Every word is one token of SmolLM2's tokenizer wherever the patterns put it (a test asks the tokenizer), so
a text's tokens can be counted without it: words plus punctuation marks. A pattern's `{slot}` is filled from
the subject's list of that name; `{other}` slots of the same list differ within a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subject:
    """What one chat is about: its own sentences, and the words the shared patterns take from it."""

    name: str
    thing: tuple[str, ...]  # singular nouns that take an article with a consonant
    things: tuple[str, ...]  # plurals and mass nouns
    do: tuple[str, ...]  # verbs that act on a thing
    quality: tuple[str, ...]
    place: tuple[str, ...]
    openings: tuple[str, ...]
    details: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SHARED = {
    "person": _words(
        "brother sister mother father friend neighbor colleague partner daughter son boss aunt uncle cousin"
    ),
    "number": _words("two three four five six seven eight nine ten twelve twenty thirty"),
    "unit": _words("minutes hours days weeks months"),
    "day": _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "feeling": _words("worried happy confused curious tired certain nervous glad proud sorry"),
    "rather": _words("very quite rather really fairly too so"),
    "often": _words("often always usually sometimes never rarely"),
    "season": _words("spring summer autumn winter"),
}

OPENINGS = (
    "Can you help me {do} the {thing} before {day}?",
    "What is the best way to {do} a {quality} {thing}?",
    "How do I {do} my {thing} without breaking the {thing}?",
    "Please explain how people {do} {things} in simple words.",
    "Should I {do} the {thing} first, or the {thing}?",
    "Which {things} would you choose for a {quality} {thing}, and why?",
    "Could you compare {things} and {things} for me?",
    "Why does my {thing} look so {quality} after {number} {unit}?",
    "Give me a short plan to {do} the {thing} in {number} {unit}.",
    "I want to {do} a {thing}, but I am {feeling} about the {things}.",
)

DETAILS = (
    "My {person} says that {quality} {things} are {often} better than {quality} ones.",
    "We {often} keep the {things} near the {place}, and it works {rather} well.",
    "Last {season} I tried to {do} it with {quality} {things}.",
    "It took about {number} {unit}, and then the {thing} was {quality}.",
    "I have {number} {things}, a {quality} {thing} and no {things}.",
    "There is a {thing} in the {place}, but it is {rather} {quality}.",
    "People told me to {do} the {thing} every {day}.",
    "I am {rather} {feeling}, because the {thing} must be ready by {day}.",
    "Is it safe to {do} the {thing} and the {thing} at the same time?",
    "What happens if I {do} it too early?",
    "How many {things} do I need for {number} people?",
    "My {person} and I do not agree about the {things}.",
    "The {place} is {quality}, so the {things} are {often} {quality} too.",
    "Do not suggest {things}, since we have none left.",
    "The old {thing} was {quality}, and the new one is {rather} {quality}.",
    "I read that {quality} {things} can last for {number} {unit}.",
    "If the {thing} is still {quality} on {day}, what should I change?",
    "Tell me what you would do with a {quality} {thing} like this.",
    "I would like to {do} it again next {season}.",
    "Money is tight, so {quality} {things} are out.",
    "We moved the {thing} from the {place} to the {place}.",
    "Maybe the {things} were {quality} from the start.",
    "First I will {do} the {thing}, then the {thing}, and then the {things}.",
    "The {things} came with a {thing}, which is {rather} {quality}.",
    "Nothing about the {thing} seems {quality} to me.",
    "My {person} wants to {do} it on {day}, which is {rather} late.",
    "In the {place} I only have {things}, {things} and a {thing}.",
)

FOLLOW_UPS = (
    "Thanks, that helps a lot, but how would I {do} the {thing}?",
    "And what about the {things}?",
    "That makes sense, so which {thing} comes first?",
    "Could you say more about the {quality} {things}?",
    "I tried that, and now the {thing} is {quality}.",
    "What if the {thing} is not {quality}?",
    "Okay, but my {person} asked why the {things} matter.",
    "Can you give me an example with a {quality} {thing}?",
    "Please make that shorter and leave out the {things}.",
    "Now write it again for my {person}, who has never seen a {thing}.",
)

# One closing of every length from 2 to 14 tokens, so that any rest of a message can be filled.
CLOSINGS: dict[int, tuple[str, ...]] = {
    2: ("Thanks.", "Please.", "Why?", "How?"),
    3: ("Thank you.", "Any ideas?", "Please help."),
    4: ("What is best?", "Keep it short.", "Please be brief."),
    5: ("What do you think?", "Please keep it simple.", "What would you do?"),
    6: ("What should I do first?", "Please give me a list."),
    7: ("Can you tell me what matters?", "A short answer is good enough."),
    8: ("Please answer in one or two lines.", "What would you do in my place?"),
    9: ("Please tell me if I have missed something.", "I am new here, so be patient."),
    10: ("Please explain it as if I were a child.", "Write it so that I can print it out."),
    11: ("I would be glad of a clear and simple answer.", "Please say which of these steps I can leave out."),
    12: ("Thank you for all your help, it means a lot.", "Please start with the part that will take the most time."),
    13: (
        "Please give me the steps in order, with times for each.",
        "If you are not sure about it, please say so too.",
    ),
    14: (
        "Tell me what could go wrong, and what I should do then.",
        "Please tell me what you would do first, and say why too.",
    ),
}

SUBJECTS = (
    Subject(
        "cooking",
        thing=_words(
            "sauce soup cake pie bread dough stew curry roast salad pan pot knife bowl recipe dish meal dinner"
        ),
        things=_words(
            "onions tomatoes potatoes carrots beans lentils herbs spices eggs "
            "noodles mushrooms apples lemons peppers berries cookies peas"
        ),
        do=_words("cook bake boil mix serve cut season cool heat prepare taste freeze"),
        quality=_words(
            "sweet salty bitter dry soft thick thin cold hot fresh raw heavy light burnt creamy spicy plain"
        ),
        place=_words("kitchen oven fridge pantry table garden basement market"),
        openings=(
            "How long should I cook {things} so that they stay {quality}?",
            "What can I cook tonight with {things}, {things} and some {things}?",
            "My {thing} tastes too {quality}, so how can I save it?",
            "Could you turn this {thing} into a meal without {things}?",
            "Which {things} go well with a {quality} {thing}?",
        ),
        details=(
            "The recipe asks for {number} cups of {things}, but I only have {number}.",
            "I left the {thing} in the oven for {number} minutes.",
            "One guest cannot eat {things}, and another does not like {things}.",
            "The pan was {rather} hot when I added the {things}.",
            "My {person} {often} adds {things} at the end.",
            "I added salt, pepper and a little sugar to the {thing}.",
            "After {number} minutes the {things} were still {quality}.",
            "The flour is old, and the butter is {rather} {quality}.",
        ),
    ),
    Subject(
        "travel",
        thing=_words("train bus flight hotel passport ticket map boat bag museum bridge tour visa trip route room car"),
        things=_words(
            "trains hotels tickets museums beaches mountains villages temples "
            "markets maps bags roads lakes islands cities trails"
        ),
        do=_words("book plan change cancel find visit take pack share check"),
        quality=_words("cheap small quiet busy early late long short local famous safe crowded warm old direct"),
        place=_words("station airport harbor coast valley city village border beach capital"),
        openings=(
            "Where should we stay for {number} nights if we like {quality} {things}?",
            "Can you plan {number} days near the {place} for a family of {number}?",
            "Is the {thing} from the {place} to the {place} worth the money?",
            "What should I pack for a {quality} {thing} in {season}?",
            "Which {things} are {quality} enough for small children?",
        ),
        details=(
            "We land at {number} in the morning and have no car.",
            "My {person} cannot walk far, so {quality} {things} would be good.",
            "The {thing} leaves at {number}, and the next one is on {day}.",
            "We lost a bag between the airport and the hotel.",
            "It may rain in {season}, so I want a plan for wet days.",
            "The hotel is {number} miles from the {place}.",
            "We have seen the {things} before, but not the {things}.",
            "People at the {place} said that the road is closed until {day}.",
        ),
    ),
    Subject(
        "code",
        thing=_words(
            "function loop test script server module query table class "
            "file parser cache queue thread branch build log list"
        ),
        things=_words(
            "tests functions files errors queries tables threads logs "
            "types loops packages servers users records strings lists"
        ),
        do=_words("write test fix debug read run split rename sort move profile replace"),
        quality=_words(
            "slow fast empty large broken small clean simple private public stable safe wrong strange nested"
        ),
        place=_words("database browser network cloud terminal repository folder cluster"),
        openings=(
            "Why does this {thing} return an empty list when the {thing} is {quality}?",
            "How would you split a {quality} {thing} into {number} small ones?",
            "My {thing} fails only in the {place}, so where do I start?",
            "Is it better to {do} the {things} in memory or in the {place}?",
            "Can you review the way I {do} {things} in this {thing}?",
        ),
        details=(
            "The error says that the {thing} is {quality}, which cannot be true.",
            "It runs fine on my machine, but not in the {place}.",
            "We have {number} thousand {things}, and each one calls the {thing}.",
            "The {thing} takes {number} seconds when the {place} is busy.",
            "I added a {thing} around the {thing}, and the {things} went away.",
            "There are no {things} for that part of the code.",
            "My {person} wrote the first version in a week.",
            "Memory grows until the {thing} stops.",
        ),
    ),
    Subject(
        "gardening",
        thing=_words("garden lawn hedge tree rose fence bed pot shed plant pond seed root path"),
        things=_words(
            "roses tomatoes seeds bulbs weeds leaves roots herbs "
            "flowers worms bees trees vegetables beans carrots berries"
        ),
        do=_words("plant water cut move cover feed grow protect trim clear"),
        quality=_words("dry wet yellow green tall small weak strong young old healthy shady sandy bare wild"),
        place=_words("garden yard balcony shed field greenhouse corner meadow"),
        openings=(
            "When should I plant {things} if the soil is {quality}?",
            "Why are the leaves of my {thing} turning {quality}?",
            "What grows well in a {quality} corner with little sun?",
            "How can I keep birds away from my {things}?",
            "Which {things} can share a bed with {things}?",
        ),
        details=(
            "The soil is {rather} {quality}, and the sun comes only after noon.",
            "I water the {things} every {number} days.",
            "There was frost on {day}, and the {things} look {quality}.",
            "Small holes appear in the leaves at night.",
            "My {person} gave me {number} young {things} last {season}.",
            "The {thing} stands near a wall that stays warm at night.",
            "I do not want to use poison, because we have a dog.",
            "Rain has been rare since the start of {season}.",
        ),
    ),
    Subject(
        "support",
        thing=_words(
            "phone laptop printer router screen account password battery "
            "keyboard camera charger order invoice package refund subscription"
        ),
        things=_words(
            "messages files photos orders payments updates settings passwords devices calls cables emails reports codes"
        ),
        do=_words("reset return update cancel change restore replace track charge connect repair"),
        quality=_words("slow broken new old empty wrong late missing blank dead blue loud hot secure"),
        place=_words("office store website app warehouse desk bank box"),
        openings=(
            "My {thing} stopped working on {day}, so what can I do?",
            "Why was I charged {number} times for the same {thing}?",
            "How do I {do} the {thing} if I have lost my password?",
            "Where is the {thing} that I ordered {number} days ago?",
            "Can I return a {quality} {thing} without the box?",
        ),
        details=(
            "The screen goes {quality} after {number} minutes.",
            "I have called {number} times, and nobody has answered.",
            "The light on the {thing} is {quality} and does not change.",
            "I paid on {day}, but the {place} still shows no order.",
            "The last update removed my {things}.",
            "I already tried to {do} it and to start again.",
            "All my {things} are on it, so I must not lose them.",
            "The message only says that the {thing} is {quality}.",
        ),
    ),
    Subject(
        "writing",
        thing=_words(
            "letter story poem speech title chapter sentence paragraph "
            "report novel scene character draft summary review"
        ),
        things=_words(
            "words chapters sentences letters poems characters scenes ideas notes titles lines facts quotes jokes"
        ),
        do=_words("write edit shorten finish start improve rewrite read cut print"),
        quality=_words("short long boring formal funny clear weak strong warm cold honest dull sad gentle serious"),
        place=_words("magazine newspaper library classroom book blog office theater"),
        openings=(
            "Can you make this {thing} sound more {quality} and less {quality}?",
            "How do I start a {thing} about my {person} and the sea?",
            "What is wrong with a {thing} that has {quality} {things}?",
            "Please suggest {number} titles for a {quality} {thing}.",
            "Should the {thing} be {quality} if the reader is a child?",
        ),
        details=(
            "The main character is a {person} who comes home after {number} years.",
            "My teacher said that the {things} are {quality}.",
            "It should be no more than {number} pages.",
            "The story takes place in {season}, in a {quality} town.",
            "I want the end to be {quality}, but not {quality}.",
            "Half of the {things} say the same thing again.",
            "The {place} wants the {thing} by {day}.",
            "It will be read out loud to my {person}.",
        ),
    ),
    Subject(
        "health",
        thing=_words("walk diet bed knee back bike plan race habit routine doctor class pool run shoulder"),
        things=_words(
            "muscles vegetables meals walks habits weights bones nights classes legs joints snacks exercises runs"
        ),
        do=_words("start build change keep rest stretch train improve track avoid"),
        quality=_words("tired strong weak sore light heavy early slow gentle hard regular healthy stiff calm"),
        place=_words("gym park office pool clinic forest kitchen house"),
        openings=(
            "How can I sleep better when my back is {quality}?",
            "Is a {quality} walk of {number} minutes a day enough?",
            "What should I eat before a {quality} race?",
            "How many days of rest do {quality} {things} need?",
            "Can you plan {number} weeks of training for a {quality} runner?",
        ),
        details=(
            "I sit at a desk for {number} hours a day.",
            "My knee feels {quality} after {number} minutes on the bike.",
            "The doctor told me to {often} avoid {quality} {things}.",
            "I wake up {number} times each night.",
            "I drink water, tea and {number} cups of coffee a day.",
            "The gym is closed on {day}, so I run in the park.",
            "My {person} lost {number} pounds with {quality} {things}.",
            "By the end of the day I feel {rather} {quality}.",
        ),
    ),
    Subject(
        "home",
        thing=_words("door window roof wall floor lamp table chair shelf tap pipe heater ceiling carpet drawer lock"),
        things=_words(
            "walls windows doors tiles pipes lights tools nails curtains shelves chairs boards wires brushes stairs"
        ),
        do=_words("fix paint clean measure build hang move repair replace cover cut"),
        quality=_words("old new wet dark loose heavy cold bright dirty dusty narrow wooden white noisy round"),
        place=_words("kitchen bathroom bedroom basement garage hall attic house"),
        openings=(
            "How do I stop a {quality} {thing} from making noise?",
            "What color would suit a {quality} room with {quality} {things}?",
            "Can I {do} the {thing} alone, or do I need {number} people?",
            "Why is there water under the {thing} in the {place}?",
            "Which tools do I need to {do} {things} in the {place}?",
        ),
        details=(
            "The house is {number} years old, and the walls are {rather} {quality}.",
            "Water falls from the {thing} every {number} minutes.",
            "The wall is {number} feet long and a little {quality}.",
            "We rent, so I cannot change the {things}.",
            "There is a smell in the {place} when it rains.",
            "I bought {quality} paint, but the {thing} looks {quality}.",
            "My {person} has a drill and {number} kinds of screws.",
            "The {thing} in the {place} was {quality} when we moved in.",
        ),
    ),
)
