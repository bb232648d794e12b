"""KAR (Xi et al., RecSys'24, arXiv 2306.10933): factorisation prompting, hybrid-expert adaptor.

Two texts, the user's preferences and the item's facts, each steered by a list of factors that
matter in the domain. The whole answer is encoded; there is no loss besides the CTR model's.
"""

from features.ctr.adaptor import HybridExpertAdaptor
from features.frameworks.framework import Framework
from pipeline.templates import ITEM_FACTS, USER_FACTS, Domain, Templates

_DOMAINS = {
    "movie": Domain(
        "viewer",
        "genre, directors and actors, period and country, characters, plot, mood, awards, "
        "production, soundtrack",
    ),
    "book": Domain(
        "reader",
        "genre, author, writing style, themes, characters, setting and period, length, mood, "
        "acclaim",
    ),
}
_GENERAL = Domain(
    "user",
    "type and purpose, maker or author, style, main features, quality, price level, occasion, "
    "audience",
)

# The wording was chosen by reading what a 135M model makes of it: it needs a plain order at the
# end; a colon to complete ("The viewer's taste:") makes it repeat the list.
_USER_TEXT = (
    """\
Analyze a {{ person }}'s {{ domain }} preferences. Consider: {{ factors }}. \
Explain briefly which kinds of {{ domain }} the {{ person }} likes and which not, \
in 3-4 sentences of plain text.

"""
    + USER_FACTS
    + """
Describe this {{ person }}'s {{ domain }} preferences now."""
)

_ITEM_TEXT = (
    """\
Describe {{ "an" if domain[:1] in "aeiouAEIOU" else "a" }} {{ domain }} for a recommender. \
Cover: {{ factors }}. Write 3-4 sentences of plain text.

"""
    + ITEM_FACTS
    + """
Describe this {{ domain }} now."""
)

FRAMEWORK = Framework(
    "kar",
    Templates(_USER_TEXT, _ITEM_TEXT, _DOMAINS, _GENERAL),
    HybridExpertAdaptor,
    learning="hybrid experts 1",
)
