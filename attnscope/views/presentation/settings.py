"""How findings are presented, whatever draws them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DisplaySettings:
    """What a caller chooses.

    Attributes:
        precision: Digits after the point in matrices.
        options: It is the command line's, so that its options are named which show more.
    """

    precision: int
    options: bool = True

    def named(self, option: str, argument: str) -> str:
        """Name what shows more: an option of the command line, or what it is called in Python."""
        return option if self.options else argument
