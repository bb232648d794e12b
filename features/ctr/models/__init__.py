"""CTR models by the name that `ctr.models` gives them; a model is one file and one line here.

All read the same rows (`rows.py`); knowledge, if any, joins them as one more input, adapted.
"""

from collections.abc import Callable

from torch import nn

from features.ctr.models.autoint import AutoInt
from features.ctr.models.dcnv2 import DcnV2
from features.ctr.models.deepfm import DeepFm
from features.ctr.models.din import Din
from features.ctr.models.lr import LogisticRegression
from features.ctr.models.rows import AddedInput, RowInput
from features.ctr.models.xdeepfm import XDeepFm

MODELS: dict[str, Callable[[RowInput, int, AddedInput | None], nn.Module]] = {
    "lr": LogisticRegression,
    "deepfm": DeepFm,
    "xdeepfm": XDeepFm,
    "autoint": AutoInt,
    "din": Din,
    "dcnv2": DcnV2,
}
