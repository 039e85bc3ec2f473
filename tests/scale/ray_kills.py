"""Actors, drivers and nodes of Ray that are killed while they write a dump: `python -m tests.scale.ray_kills`.

A cluster of a head and several raylets runs on this machine. In each round, `attnscope batch --ray` is started with a
random number of actors; one of its actors, the driver itself, or a node is killed at a random moment, and the command
is started again until it is done. The dump has to be that of one process, byte for byte. At last, `ray.data` and
`datasets` map the same texts with two processes each.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PATIENCE = 900  # seconds for a dump: Ray takes minutes to start its workers on a busy machine
WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()


def actors():
    """Processes of actors that write shards; Ray sets their names."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::ShardWriter"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


class Kills:
    """A cluster, and what was killed."""

    def __init__(self, folder, seed, texts):
        from ray.cluster_utils import Cluster

        self.folder, self.luck, self.killed = (
            folder,
            random.Random(seed),
            {"actor": 0, "driver": 0, "node": 0},
        )
        lines = (
            " ".join(self.luck.choices(WORDS, k=self.luck.randrange(1, 40))) for _ in range(texts)
        )
        (folder / "texts.txt").write_text("\n".join(lines) + "\n")
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        # 15 otherwise, for which a busy machine has no time
        self.environment["RAY_worker_niceness"] = "0"
        os.environ.update(self.environment)
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.call("-o", "alone.jsonl", "--threads", "1").wait()

    def call(self, *options):
        command = [
            sys.executable,
            "-m",
            "attnscope",
            "batch",
            "texts.txt",
            "--keep",
            "top,rows",
            "--quiet",
            *options,
        ]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment)

    def round(self, kills):
        """Write a dump, during which so many processes are killed; whether it came out right."""
        for kind in kills:
            driver = self.driver()
            deadline = time.monotonic() + 120
            while not actors() and driver.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            time.sleep(self.luck.uniform(0, 8))
            if driver.poll() is None and self.kill(kind, driver):
                self.killed[kind] += 1
            if driver.wait(PATIENCE) == 0:
                break
        while not (self.folder / "d.jsonl").exists():
            if self.driver().wait(PATIENCE):
                return False
        same = (self.folder / "d.jsonl").read_bytes() == (self.folder / "alone.jsonl").read_bytes()
        (self.folder / "d.jsonl").unlink()
        return same

    def driver(self):
        count = str(self.luck.randint(1, 3))
        return self.call("-o", "d.jsonl", "--ray", self.cluster.address, "--actors", count)

    def kill(self, kind, driver):
        if kind == "driver":
            driver.kill()
        elif kind == "actor":
            found = actors()
            if not found:
                return False
            os.kill(self.luck.choice(found), signal.SIGKILL)
        else:
            self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
            self.nodes.append(self.cluster.add_node(num_cpus=1))
        return True


def missing():
    """Why this cannot run here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "processes are found in /proc, which this system does not have"
    lacking = [name for name in ("ray", "datasets") if find_spec(name) is None]
    return (
        f"not installed: {', '.join(lacking)} (pip install {' '.join(lacking)})" if lacking else ""
    )


def mapped(folder):
    """Whether rows of ray.data and of datasets, mapped by several processes, have the records of a dump."""
    import datasets
    import ray

    from attnscope.ray import RecordMapper

    texts = (folder / "texts.txt").read_text().splitlines()
    lines = (folder / "alone.jsonl").read_text().splitlines()[1:-1]
    expected = {line["index"]: line for line in map(json.loads, lines)}
    kept = {"keep": ("top", "rows")}
    rows = ray.data.from_items([{"text": text, "n": n} for n, text in enumerate(texts)])
    pool = ray.data.ActorPoolStrategy(size=2)
    rows = rows.map_batches(RecordMapper, fn_constructor_kwargs=kept, compute=pool, batch_size=50)
    datasets.disable_progress_bars()
    others = datasets.Dataset.from_dict({"text": texts, "n": [*range(len(texts))]})
    others = others.map(RecordMapper(**kept), batched=True, batch_size=50, num_proc=2)
    return all(
        sum(same(expected[row["n"]], row) for row in made) == len(texts)
        for made in (rows.iter_rows(), others)
    )


def same(expected, row):
    """Whether a row has the record of its text, up to the last bits that its batch decides."""
    record = json.loads(row["record"])
    if (row["status"], len(record["tokens"])) != (expected["status"], len(expected["tokens"])):
        return False
    return row["status"] != "ok" or np.allclose(
        record["rows"]["entropy"], expected["rows"]["entropy"], atol=1e-4
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if reason := missing():
        print(f"not run: {reason}")
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="attnscope-ray-") as name:
        kills = Kills(Path(name), given.seed, given.texts)
        import ray

        try:
            for _ in range(given.rounds):
                order = ["actor", "driver", "node"]
                kills.luck.shuffle(order)
                wrong += not kills.round(order)
            ray.init(kills.cluster.address, log_to_driver=False)
            mapper = mapped(Path(name))
        finally:
            ray.shutdown()
            kills.cluster.shutdown()
        counts = ", ".join(f"{count} of {kind}s" for kind, count in kills.killed.items())
        print(f"{given.rounds} dumps; kills: {counts}; {wrong} wrong")
        print(
            f"ray.data and datasets, two processes each: {'the records of a dump' if mapper else 'OTHER records'}"
        )
    return bool(wrong) or not mapper


if __name__ == "__main__":
    sys.exit(main())
