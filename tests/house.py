"""How much there is to read: `python -m tests.house [FOLDER …]` prints it for every folder of the package.

`python -m tests.house --write` writes the tokens of every feature into ARCHITECTURE.md.
Tokens are those of Python's tokenizer without comments, docstrings and layout: lines can be joined, tokens cannot.
`joined`, `if-else` (conditional expressions) and `for` (comprehensions) are of 1,000 statements; `test_house.py` has bounds.
`run` is what one `attnscope run "The bank by the river"` executes of it.
"""

import argparse
import ast
import contextlib
import inspect
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "attnscope"
READ = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
VAGUE = frozenset(
    "given named known kept shown written chosen drawn needed beside place number most first kind".split()
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
ARCHITECTURE = PACKAGE.parent / "ARCHITECTURE.md"
LEDGER = "<!-- tokens of features: python -m tests.house --write -->\n"
# What a reader could do without, and the files and folders that would go with it; the longest path that fits counts.
FEATURES = {
    "attention of one text: native engine, recorders, run": "model run studies/run engines",
    "options, settings, masks, selections; both faces": "request cli api studies callbacks.py testing.py __init__.py "
    "__main__.py base",
    "findings, JSON, arrays in files": "findings",
    "terminal and what all views share": "views studies/screens",
    "checkpoints and families": "checkpoints",
    "tokenizers without tokenizer.json": "checkpoints/tokenization/building.py "
    "checkpoints/tokenization/sentence_pieces.py checkpoints/tokenization/growth.py "
    "checkpoints/tokenization/word_tokenizer.py",
    "other models, through transformers": "engines/transformers",
    "dumps of many texts": "batch cli/batch.py cli/batch_progress.py cli/convert.py cli/verify.py api/dumps.py",
    "dumps: tables and Parquet": "batch/tables.py batch/parquet_sink.py batch/parquet_footer.py batch/arrow_input.py",
    "dumps: SLURM, shards, merge": "batch/merge.py batch/parts.py batch/part_lines.py batch/blocks.py cli/merge.py "
    "cli/slurm_script.py",
    "dumps: Ray": "batch/ray_shards.py ray.py",
    "dumps: stores (s3, gs, hf)": "batch/remote.py batch/staging.py",
    "doctor": "studies/doctor findings/doctor.py api/doctoring.py",
    "compare": "studies/compare findings/compare.py",
    "heads: roles, one number, needle": "studies/heads findings/head_roles.py findings/head_findings.py "
    "findings/head_changes.py api/head_results.py model/recorders/patterns.py",
    "ablate and patching": "studies/ablate findings/ablation.py api/ablation.py model/cuts.py run/cut_plan.py "
    "model/head_capture.py",
    "explain": "studies/explain findings/explain.py",
    "check": "studies/check findings/check.py engines/transformers/reference.py",
    "learn": "studies/learn findings/lesson.py cli/learn.py",
    "rollout and value zeroing": "studies/rollout findings/rollout.py model/value_zeroing.py",
    "parts of a logit": "findings/attribution.py model/logit_parts.py engines/transformers/residual.py "
    "studies/run/attribution_screen.py",
    "spans and chats": "checkpoints/chat request/spans.py request/dividing.py request/chat.py findings/spans.py "
    "run/analysis/spans.py model/recorders/spans.py studies/screens/spans.py studies/run/span_walk.py run/rendering.py",
    "layers without softmax": "studies/mixing model/mixing.py model/mixing_shares.py run/analysis/mixing.py "
    "findings/mixing.py engines/transformers/mixing.py",
    "pictures": "views/pictures.py views/terminal/pictures.py engines/transformers/pictures.py "
    "engines/transformers/media.py engines/transformers/prompts.py engines/transformers/videos.py studies/screens/pictures.py "
    "studies/heads/pictures.py findings/images.py findings/merge_pieces.py",
    "sound": "views/sound.py studies/screens/sound.py studies/heads/sound.py engines/transformers/sound.py "
    "run/sound.py run/analysis/alignment.py run/analysis/onsets.py run/analysis/speech.py findings/sound.py",
    "given queries, keys and values": "engines/arrays api/arrays.py findings/given_output.py "
    "studies/run/given_output_screen.py studies/compare/with_arrays.py",
    "explore": "views/explore views/walk studies/explore cli/explore.py api/exploring.py batch/walks.py",
    "pages": "views/page studies/run/page.py studies/heads/page.py studies/ablate/page.py studies/compare/page.py "
    "batch/page.py run/every_head.py studies/run/every_head.py studies/run/head_walk.py",
    "figures": "views/figure",
    "GGUF": "checkpoints/gguf.py checkpoints/gguf_header.py checkpoints/tokenization/gguf.py",
    "LoRA": "checkpoints/adapter.py",
    "import of pickled weights": "checkpoints/convert_pickle cli/import_.py",
    "loops behind `fast`": "model/compiled_rows.py model/row_summary.py",
    "the fused kernel on GPUs": "model/fused_kernels.py model/fused_rows.py",
    "estimates of memory": "request/estimate.py request/memory.py run/cost.py",
}


def docstring_lines(tree: ast.AST) -> set[int]:
    """First lines of docstrings."""
    lines = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS)
            and ast.get_docstring(node, clean=False) is not None
        ):
            lines.add(node.body[0].lineno)
    return lines


def joined_assignments(tree: ast.AST) -> Iterator[ast.Assign]:
    """Yield `a, b = x, y`, which are several statements on one line; an exchange such as `a, b = b, a` is none."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and isinstance(node.targets[0], ast.Tuple)
        ):
            targets = {ast.unparse(target) for target in node.targets[0].elts}
            values = {ast.unparse(value) for value in node.value.elts}
            if not targets & values:
                yield node


def nested_conditions(tree: ast.AST) -> Iterator[ast.IfExp]:
    """Yield conditional expressions within others, which are read from the middle outwards."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            inner = [part for part in ast.walk(node) if isinstance(part, ast.IfExp)]
            yield from inner[1:]


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield every name that is bound: variables, parameters, functions and classes, without underscores before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.lstrip("_")
        elif isinstance(node, ast.arg):
            yield node.arg.lstrip("_")
        elif isinstance(node, FUNCTIONS | ast.ClassDef):
            yield node.name.lstrip("_")


def measure(path: Path) -> Counter[str]:
    """Count what one file has."""
    text = path.read_text()
    tree = ast.parse(text)
    documented = docstring_lines(tree)
    counts = Counter[str]()
    code_lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in documented
        if token.type in READ and not is_docstring:
            counts["tokens"] += 1
            code_lines.add(token.start[0])
    counts["code lines"] = len(code_lines)
    names = list(bindings(tree))
    counts["bindings"] = len(names)
    counts["vague names"] = sum(name in VAGUE for name in names)
    counts["joined assignments"] = sum(1 for _ in joined_assignments(tree))
    counts["nested conditions"] = sum(1 for _ in nested_conditions(tree))
    for node in ast.walk(tree):
        counts["statements"] += isinstance(node, ast.stmt)
        counts["functions"] += isinstance(node, FUNCTIONS)
        counts["conditions"] += isinstance(node, ast.IfExp)
        counts["comprehensions"] += isinstance(node, COMPREHENSIONS)
    return counts


def total(folder: Path) -> Counter[str]:
    """Count what all files below a folder have."""
    counts = Counter[str]()
    for path in sorted(folder.rglob("*.py")):
        counts += measure(path)
    return counts


def per_thousand(counts: Counter[str], what: str) -> float:
    """Return how many of something there are in 1,000 statements."""
    return 1000 * counts[what] / counts["statements"]


def feature_of(path: Path) -> str:
    """Return the feature that a file of the package is part of."""
    name = path.relative_to(PACKAGE).as_posix()
    prefixes = {prefix: feature for feature, paths in FEATURES.items() for prefix in paths.split()}
    return prefixes[
        max((prefix for prefix in prefixes if f"{name}/".startswith(f"{prefix}/")), key=len)
    ]


def ledger() -> Iterator[str]:
    """Yield the lines of a table of all features, the largest first."""
    tokens = Counter[str]()
    files = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        tokens[feature_of(path)] += measure(path)["tokens"]
        files[feature_of(path)] += 1
    yield "| feature | files | tokens | share |"
    yield "|---|---:|---:|---:|"
    for feature, count in tokens.most_common():
        yield f"| {feature} | {files[feature]} | {count:,} | {100 * count / tokens.total():.1f} % |"
    yield f"| all | {files.total()} | {tokens.total():,} | 100 % |"


def write_ledger() -> None:
    """Write the table into ARCHITECTURE.md, below its mark."""
    before, mark, after = ARCHITECTURE.read_text().partition(LEDGER)
    rest = after.lstrip("\n").split("\n")
    while rest and rest[0].startswith("|"):
        del rest[0]
    table = "\n".join(ledger())
    ARCHITECTURE.write_text(f"{before}{mark}\n{table}\n" + "\n".join(rest))


def executed(arguments: list[str]) -> tuple[int, int]:
    """Return how many different functions of the package a command executes, and in how many files."""
    functions = set()

    def note(frame, event, _):
        # The body of a class is executed, too, without being a function.
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and frame.f_code.co_filename.startswith(str(PACKAGE)):
            functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        from attnscope.cli import main

        with contextlib.redirect_stdout(io.StringIO()):
            assert main(arguments) == 0
    finally:
        sys.setprofile(None)
    named = {
        (file, name)
        for file, name in functions
        if not name.endswith(("<lambda>", "comp>", "<genexpr>", "<module>"))
    }
    return len(named), len({file for file, _ in named})


def arrows() -> int:
    """Count the pairs of rooms (modules or folders directly below the package) of which one imports the other."""
    pairs = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            rooms = {name.split(".")[1] for name in names if name.startswith("attnscope.")}
            pairs |= {
                (path.relative_to(PACKAGE).parts[0].removesuffix(".py"), room) for room in rooms
            }
    return sum(first != second for first, second in pairs)


def report(folders: list[Path]) -> Iterator[str]:
    """Yield lines of a table."""
    of_names = f"{'joined ‰':>10}{'vague %':>9}{'if-else ‰':>11}{'for ‰':>7}"
    yield f"{'folder':<24}{'tokens':>9}{'a line':>8}{'functions':>11}{of_names}"
    for folder in folders:
        counts = total(folder)
        if not counts["tokens"]:
            continue
        a_line = counts["tokens"] / counts["code lines"]
        joined = per_thousand(counts, "joined assignments")
        conditions = per_thousand(counts, "conditions")
        comprehensions = per_thousand(counts, "comprehensions")
        vague = 100 * counts["vague names"] / counts["bindings"]
        name = str(folder.relative_to(PACKAGE.parent))
        of_names = f"{joined:>10.1f}{vague:>9.2f}{conditions:>11.1f}{comprehensions:>7.1f}"
        yield f"{name:<24}{counts['tokens']:>9,}{a_line:>8.1f}{counts['functions']:>11,}{of_names}"


def main() -> None:
    """Print the table, and what a run executes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="write the ledger of features into ARCHITECTURE.md"
    )
    options = parser.parse_args()
    if options.write:
        write_ledger()
        return
    folders = [folder.resolve() for folder in options.folders]
    folders = folders or [*sorted(path for path in PACKAGE.iterdir() if path.is_dir()), PACKAGE]
    print("\n".join(report(folders)))
    functions, files = executed(["run", "The bank by the river"])
    print(f"\nrun: {functions} functions in {files} files; {arrows()} arrows between rooms")


if __name__ == "__main__":
    main()
