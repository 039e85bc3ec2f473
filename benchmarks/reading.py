"""Reading the texts of a dump, without a model: texts a second, in processor time.

As `batch` reads them: their facts (digest, number, lengths, ids), how many are selected, and each with its block. The
peer is a script that reads every line or row once, decodes it and hashes its text. Medians of turns in one process;
the exit code is 1 if a ratio is below the limit.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from statistics import median

import pyarrow
from pyarrow import parquet

from attnscope.batch.blocks import SelectedItems
from attnscope.batch.header import Grouping, Settings
from attnscope.batch.reader import InputReader

WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()
LIMITS = {".txt": 0.15, ".jsonl": 0.15, ".parquet": 0.1}  # of the script's speed
BOUNDS = Grouping(1 << 10, 1 << 22, 1 << 24, 1, 1 << 12, 1 << 6, 1 << 14)


def write(folder, count):
    """Write texts of 4 to 20 words, as lines and, with an id and another member, as JSON and a table."""
    luck = random.Random(1)
    texts = [" ".join(luck.choices(WORDS, k=luck.randint(4, 20))) for _ in range(count)]
    lines, objects, table = (folder / f"{count}.{kind}" for kind in ("txt", "jsonl", "parquet"))
    lines.write_text("".join(f"{text}\n" for text in texts))
    rows = [{"id": f"n{n}", "text": text, "label": n % 3} for n, text in enumerate(texts)]
    objects.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    return lines, objects, table


def read(path):
    """Read as `batch` does."""
    with InputReader(str(path), None, "text") as reader:
        reader.facts()
        items = SelectedItems(reader, Settings())
        total = items.count(BOUNDS)
        items.count_blocks(BOUNDS)
        assert sum(1 for _ in items.select(BOUNDS)) == total


def script(path):
    """Read as a script would."""
    digests = []
    if path.suffix == ".parquet":
        for batch in parquet.ParquetFile(path).iter_batches(columns=["text"]):
            digests += [sha256(text.encode()).hexdigest() for text in batch.column(0).to_pylist()]
        return
    with open(path, "rb") as file:
        for line in file:
            text = json.loads(line)["text"] if path.suffix == ".jsonl" else line.decode().rstrip()
            digests.append(sha256(text.encode()).hexdigest())


def seconds(work, path):
    """Return the processor time of something."""
    begun = time.process_time()
    work(path)
    return time.process_time() - begun


def main():
    """Print texts a second, and the ratio to the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    missed = False
    print(f"{'':<19} {'µs a text':>10} {'texts/s':>10} {'of the script':>14}")
    with tempfile.TemporaryDirectory(prefix="attnscope-reading-") as name:
        for count in given.texts:
            for path in write(Path(name), count):
                took = {read: [], script: []}
                for _ in range(given.repeats):
                    for work, times in took.items():
                        times.append(seconds(work, path))
                ours, peer = (median(times) for times in took.values())
                missed |= peer / ours < LIMITS[path.suffix]
                row = f"{1e6 * ours / count:>10.2f} {count / ours:>10,.0f} {peer / ours:>14.2f}"
                print(f"{path.suffix:<8} {count:>10,} {row}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
