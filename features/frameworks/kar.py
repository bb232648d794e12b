"""KAR (Xi et al., RecSys'24, arXiv 2306.10933): factorisation prompting, hybrid-expert adaptor.

Two texts, the user's preferences and the item's facts, each steered by a list of factors that
matter in the domain. The whole answer is encoded; there is no loss besides the CTR model's.
"""

from features.ctr.adaptor import HybridExpertAdaptor
from features.frameworks.framework import Framework

FRAMEWORK = Framework(
    "kar",
    HybridExpertAdaptor,
    learning="hybrid experts 1",
)
