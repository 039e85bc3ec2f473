"""Buffer the rows of a csv.writer."""

import io


class CsvLines(io.StringIO):
    r"""A buffer for a csv.writer with its own line ends, "\r\n", which end in "\n" here.

    A writer quotes only cells with a character of its line ends: with "\n" alone, a cell with "\r" would end its row
    for a reader.
    """

    def write(self, row: str) -> int:
        """Add one row, as the writer gives them."""
        return super().write(row.removesuffix("\r\n") + "\n")
