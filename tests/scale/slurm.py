"""A job array on a real SLURM on this machine, with random `scancel` and requeues: `python -m tests.scale.slurm`.

It needs Debian's slurm-wlm (slurmctld, slurmd, munged) and root, since slurmd starts jobs for users. Eight tasks on two
nodes write the parts of a dump; while they run, random tasks are requeued or cancelled and submitted again, until all
parts are finished. Joined, they have to be the file of one process, byte for byte.
"""

import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scancel", "scontrol", "squeue", "sinfo")
WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()
CONFIG = """\
ClusterName=attnscope
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobRequeue=1
MinJobAge=300
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing():
    """Why this machine cannot run the test; None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install slurm-wlm)"
    return None if os.geteuid() == 0 else "slurmd starts jobs for users, which takes root"


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """slurmctld, two slurmd and munged, in a folder of their own."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        port, first, second = free_ports(3)
        host = socket.gethostname().split(".")[0]
        config = folder / "slurm.conf"
        config.write_text(
            CONFIG.format(folder=folder, host=host, port=port, first=first, second=second)
        )
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (folder / "state").mkdir()
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(config),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for name in ("one", "two"):
            (folder / f"spool-{name}").mkdir()
        files = [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            *files,
        )
        self._start("slurmctld", "-D", "-f", str(config))
        for name in ("one", "two"):
            self._start("slurmd", "-D", "-N", name, "-f", str(config))

    def _start(self, *command):
        log = open(self.folder / f"{command[0]}-{len(self.processes)}.out", "wb")  # noqa: SIM115
        self.processes.append(
            subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        )
        log.close()

    def ask(self, *command, check=True):
        done = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}{self.logs()}")
        return done.stdout

    def wait_until_ready(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.ask("sinfo", "-h", "-N", "-o", "%N %t", check=False).count(" idle") < 2:
            if time.monotonic() > deadline or any(
                process.poll() is not None for process in self.processes
            ):
                raise RuntimeError(f"the cluster does not start\n{self.logs()}")
            time.sleep(0.5)

    def logs(self):
        return "".join(
            f"--- {path.name}\n{path.read_text()[-1500:]}"
            for path in sorted(self.folder.glob("*.[lo][ou]*"))
        )

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def run(folder, texts, interruptions, seed):
    luck = random.Random(seed)
    lines = (" ".join(luck.choices(WORDS, k=luck.randrange(1, 40))) for _ in range(texts))
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    cluster = Cluster(folder)
    call = [sys.executable, "-m", "attnscope"]
    try:
        cluster.wait_until_ready()
        script = cluster.ask(
            *call, "batch", "texts.txt", "-o", "dump.jsonl", "--keep", "top,rows", "--sbatch", "8"
        )
        (folder / "job.sh").write_text(script)
        job = cluster.ask("sbatch", "--parsable", "job.sh").strip()
        begun, sent, submitted = time.monotonic(), {"requeue": 0, "scancel": 0}, 1
        while True:
            rows = [
                row.split()
                for row in cluster.ask("squeue", "-h", "-r", "-o", "%A_%a %i %t").splitlines()
            ]
            running = [row[1] for row in rows if row[2] == "R"]
            if not rows:
                status = cluster.ask(*call, "merge", *parts(folder), "--status", check=False)
                if "8 of 8 parts finished" in status:
                    break
                submitted += 1
                job = cluster.ask("sbatch", "--parsable", "job.sh").strip()  # what was cancelled
            if running and sum(sent.values()) < interruptions:
                kind = luck.choice(list(sent))
                command = ["scontrol", "requeue"] if kind == "requeue" else ["scancel"]
                cluster.ask(*command, luck.choice(running), check=False)
                sent[kind] += 1
            if time.monotonic() - begun > 900:
                raise RuntimeError(f"not finished after 900 s\n{cluster.logs()}")
            time.sleep(luck.uniform(0.3, 2.5))
        cluster.ask(*call, "merge", *parts(folder), "-o", "dump.jsonl", "--quiet")
        alone = ["-o", "alone.jsonl", "--keep", "top,rows", "--threads", "1", "--quiet"]
        cluster.ask(*call, "batch", "texts.txt", *alone)
        same = (folder / "dump.jsonl").read_bytes() == (folder / "alone.jsonl").read_bytes()
        seconds = time.monotonic() - begun
        interrupted = f"{sent['scancel']} scancel and {sent['requeue']} requeues, {submitted} submissions, last {job}"
        if not same:
            keep = shutil.copytree(
                folder,
                tempfile.mkdtemp(prefix="attnscope-slurm-other-"),
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("*.socket*"),
            )
            print(f"see {keep}")
        print(
            f"8 tasks on 2 nodes, {interrupted}, {seconds:.0f} s: {'the same' if same else 'OTHER'} bytes"
        )
        return same
    finally:
        cluster.close()


def parts(folder):
    return sorted(path.name for path in folder.glob("dump-part-*.jsonl"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--interruptions", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if reason := missing():
        print(f"not run: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="attnscope-slurm-") as name:
        return 0 if run(Path(name), given.texts, given.interruptions, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
