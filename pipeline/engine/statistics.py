"""Where the time of an engine went."""

from dataclasses import dataclass, fields

PARTS = ("draft", "forward", "verify", "bookkeeping")  # of a step


@dataclass
class EngineStatistics:
    """Where the time of an engine went, in seconds, and what it made."""

    steps: int = 0
    rows: int = 0  # summed over the steps
    packed_tokens: int = 0
    draft: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    bookkeeping: float = 0.0
    # Of steps without any piece of a prompt: all seconds, and those outside the forward pass.
    decoding: float = 0.0
    decoding_overhead: float = 0.0
    tokens: int = 0  # written, those of rows that are not finished included

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.draft + self.forward + self.verify + self.bookkeeping

    def plus(self, other: "EngineStatistics", sign: int = 1) -> "EngineStatistics":
        """Those of two engines, or of two times, together; with sign -1 what lies between them."""
        names = [field.name for field in fields(self)]
        return EngineStatistics(
            **{name: getattr(self, name) + sign * getattr(other, name) for name in names}
        )
