"""Sizes and times of pages, against the numbers themselves.

    python benchmarks/page.py [--runs N]

writes pages of a random stack of 12 layers × 12 heads: 512 tokens (at most 2 MB, and 2 s on top of the forward passes),
and 8,192 tokens (at most 6 MB). The peer is the same run that writes nothing but one number (`run --stage none --top 0
-o x.json`), and the float32 matrices of all heads as they are, which is what a page without a summary would hold. With
playwright and Chromium, each page is opened from disk, offline: seconds until it is drawn (at most 1 s), processor time
of the page's thread, and its longest task, over which it does not react. Exits with 1 where a limit is missed.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
STACK = """d_model = 768
n_heads = 12
d_head = 64
d_value = 64
n_layers = 12
d_mlp = 3072
activation = "gelu"
mask = "causal"
positions = "rope"
norm = "layernorm"
seed = 1
"""
WORDS = (ROOT / "README.md").read_text(encoding="utf-8").split()
LIMITS = {512: (2_000_000, 2.0), 8192: (6_000_000, None)}
OPENING = 1.0  # seconds until a page can be used
WATCH = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration / 1000);
}).observe({type: "longtask", buffered: true});
"""


def run(folder: Path, tokens: int, *options: str) -> float:
    """Seconds of a process."""
    draw = random.Random(tokens)
    text = " ".join(
        word for word in draw.choices([word for word in WORDS if word.isalpha()], k=tokens)
    )
    command = [
        sys.executable,
        "-m",
        "attnscope",
        "run",
        "-",
        "--config",
        str(folder / "stack.toml"),
        "--quiet",
    ]
    started = time.perf_counter()
    subprocess.run(
        [*command, *options, "--force"], input=text, text=True, env=ENVIRONMENT, check=True
    )
    return time.perf_counter() - started


def opened(path: Path, runs: int) -> list[tuple[float, float, float]] | None:
    """Seconds until a page is drawn, of its thread's processor time until it is at rest, and of its longest task."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        return None
    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for _ in range(runs):
            page = browser.new_context(offline=True).new_page()
            page.add_init_script(WATCH)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            started = time.perf_counter()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]", timeout=60_000)
            seconds = time.perf_counter() - started
            page.wait_for_timeout(1000)
            metrics = {
                one["name"]: one["value"]
                for one in session.send("Performance.getMetrics")["metrics"]
            }
            times.append((seconds, metrics["TaskDuration"], page.evaluate("window.longest")))
            page.context.close()
        browser.close()
    return times


def main() -> int:
    """Print sizes and times."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokens", type=int, action="append", choices=[*LIMITS])
    given = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stack.toml").write_text(STACK)
        for tokens in given.tokens or LIMITS:
            size, seconds = LIMITS[tokens]
            page, bare = folder / "page.html", folder / "bare.json"
            pairs = [
                (
                    run(folder, tokens, "-o", str(page)),
                    run(
                        folder,
                        tokens,
                        "--stage",
                        "none",
                        "--top",
                        "0",
                        "--pool",
                        "1",
                        "-o",
                        str(bare),
                    ),
                )
                for _ in range(given.runs)
            ]
            more = median(a - b for a, b in pairs)
            written = page.stat().st_size
            matrices = 144 * tokens**2 * 4
            print(
                f"{tokens:,} tokens: {written:,} bytes (limit {size:,}), 1/{matrices / written:,.0f} of the matrices"
            )
            whole = median(a for a, _ in pairs)
            print(f"  {whole:.2f} s, {more:.2f} s more than the bare run (limit {seconds or '–'})")
            missed += written > size or (seconds is not None and more > seconds)
            times = opened(page, given.runs)
            if times is None:
                print("  not opened: playwright or Chromium is missing")
                continue
            drawn, busy, longest = (median(column) for column in zip(*times, strict=True))
            print(
                f"  drawn in {drawn:.2f} s (limit {OPENING}), {busy:.2f} s of processor, longest task {longest:.2f} s"
            )
            missed += drawn > OPENING
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
