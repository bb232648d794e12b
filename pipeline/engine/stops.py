"""When a row ends: at a stop token, or with the token that completes a stop string."""

from collections.abc import Callable, Collection, Sequence

import numpy as np


class Stops:
    """Stop tokens are not part of the output; the token that completes a stop string is.

    Both as in transformers, except that a stop string is looked for in the output only.
    """

    def __init__(
        self,
        ids: Collection[int],
        strings: Sequence[str] = (),
        decode: Callable[[np.ndarray], str] | None = None,
    ) -> None:
        """`decode` turns output ids (tokens,) into text; only stop strings need it.

        It must not leave special tokens out: they can be stop strings, and they part what stands
        on either side.

        Raises:
            ValueError: an empty stop string, or strings without a way to decode.
        """
        if strings and (decode is None or not all(strings)):
            raise ValueError(f"stop strings {strings!r} need `decode`, and none may be empty")
        self.ids = frozenset(ids)
        self._strings = tuple(strings)
        self._decode = decode
        # A token is a byte of text or more, so no stop string reaches over more tokens. One more is
        # decoded, since some tokenizers strip the white space that a text begins with.
        self._reach = max((len(string.encode()) for string in strings), default=0) + 1

    def are_completed_by(self, output: np.ndarray) -> bool:
        """Whether the last token of `output` (new,) completes a stop string."""
        if not self._strings or self._decode is None:
            return False
        tail = self._decode(output[-self._reach :])
        return any(string in tail for string in self._strings)

    def end_with(self, token: int, output: np.ndarray) -> bool:
        """Whether `token` would end a row whose output so far is `output` (new,)."""
        if token in self.ids:
            return True
        return bool(self._strings) and self.are_completed_by(np.append(output, token))
