"""What `attnscope merge` costs at a million records, beside `cat`.

Records are those of a real dump of the sample model, with other numbers, dealt to parts in blocks as shards are. Peer:
`cat part-* > file`, of the same bytes on the same disk, and both followed by a sync of the file.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from attnscope.batch.header import Header
from attnscope.batch.journal import seal
from attnscope.batch.records import End, encode
from attnscope.findings.codec import decode_json

MEMORY, SPEED = 200, 0.7  # MB at most, and of the speed of cat at least
BLOCK = 1024
WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()


def sample(folder):
    """Header and records of a dump of a few hundred texts of about 15 tokens."""
    luck = random.Random(1)
    lines = (" ".join(luck.choices(WORDS, k=luck.randint(8, 18))) for _ in range(200))
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "batch",
        "texts.txt",
        "-o",
        "dump.jsonl",
        "--quiet",
    ]
    subprocess.run(command, cwd=folder, check=True)
    header, *records, _ = (folder / "dump.jsonl").read_bytes().splitlines()
    bodies = [re.sub(rb',"check":"[0-9a-f]{8}"\}$', b"}", line) for line in records]
    return decode_json(re.sub(rb',"check":"[0-9a-f]{8}"\}$', b"}", header), Header), bodies


def write_parts(folder, header, bodies, count, shards):
    """Deal records to parts by blocks; how many bytes they have."""
    facts = msgspec.structs.replace(header.input, records=count)
    size = 0
    for shard in range(shards):
        settings = msgspec.structs.replace(header.settings, shard=(shard + 1, shards))
        path, crc, records = folder / f"part-{shard + 1}.jsonl", 0, 0
        with open(path, "wb", 1 << 20) as file:

            def put(body, file=file):
                nonlocal crc
                line, crc = seal(body, crc)
                file.write(line)

            put(encode(msgspec.structs.replace(header, settings=settings, input=facts)))
            for first in range(shard * BLOCK, count, shards * BLOCK):
                for index in range(first, min(first + BLOCK, count)):
                    put(
                        re.sub(
                            rb'^\{"index":\d+', b'{"index":%d' % index, bodies[index % len(bodies)]
                        )
                    )
                    records += 1
            put(encode(End(True, records, records, 0, 0)))
        size += path.stat().st_size
    return size


def cost_of(command, folder):
    """Seconds, seconds of a CPU and peak memory in MB of a command."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, shell=isinstance(command, str), cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{command} failed")
    return time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def main():
    """Write the parts, then join them both ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--parts", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attnscope-merge-", dir=given.folder) as name:
        folder = Path(name)
        header, bodies = sample(folder)
        size = write_parts(folder, header, bodies, given.records, given.parts)
        parts = [f"part-{number + 1}.jsonl" for number in range(given.parts)]
        merge = [
            sys.executable,
            "-m",
            "attnscope",
            "merge",
            *parts,
            "-o",
            "merged.jsonl",
            "--quiet",
            "--force",
        ]
        times = {"cat": [], "merge": []}
        for _ in range(given.repeats):
            times["cat"].append(
                cost_of(f"cat {' '.join(parts)} > joined.jsonl && sync joined.jsonl", folder)
            )
            os.unlink(folder / "joined.jsonl")
            times["merge"].append(cost_of(merge, folder))
            os.unlink(folder / "merged.jsonl")
    cat, ours = (sorted(times[name])[given.repeats // 2] for name in ("cat", "merge"))
    memory = max(peak for _, _, peak in times["merge"])
    print(f"{given.records:,} records in {given.parts} parts, {size / 1e9:.2f} GB")
    print(f"cat {cat[0]:.1f} s (CPU {cat[1]:.1f} s), merge {ours[0]:.1f} s (CPU {ours[1]:.1f} s)")
    print(
        f"{cat[0] / ours[0]:.2f} of the speed of cat (limit {SPEED}); peak memory {memory:.0f} MB (limit {MEMORY})"
    )
    return cat[0] / ours[0] < SPEED or memory > MEMORY


if __name__ == "__main__":
    sys.exit(main())
