"""Values for shell completion."""

from collections.abc import Callable, Iterable
from pathlib import Path

from attnscope.request.arguments import STAGES
from attnscope.request.masks.terms import TERMS


def samples(incomplete: str) -> list[str]:
    """Complete names of bundled checkpoints, and folders."""
    from attnscope.checkpoints.samples import sample_names

    return _starting(sample_names("sample_weights"), incomplete) + _paths(
        incomplete, folders_only=True
    )


def configs(incomplete: str) -> list[str]:
    """Complete names of bundled configs, and TOML files."""
    from attnscope.checkpoints.samples import sample_names

    return _starting(sample_names("configs"), incomplete) + _paths(incomplete, ending=".toml")


def files(incomplete: str) -> list[str]:
    """Complete files and folders."""
    return _paths(incomplete)


def masks(incomplete: str) -> list[str]:
    """Complete words of a mask expression, also after +, | and (, and files."""
    start = max(incomplete.rfind(mark) for mark in "+|(") + 1
    done = incomplete[:start]
    last = incomplete[start:]
    words = _starting([term.form.partition("N")[0] for term in TERMS], last)
    return [f"{done}{word}" for word in words + (_paths(last) if last else [])]


def stages(incomplete: str) -> list[str]:
    """Complete stages, also after a comma, or `none`."""
    return _listed(STAGES if "," in incomplete else (*STAGES, "none"), incomplete)


def roles(incomplete: str) -> list[str]:
    """Complete roles of heads, also after a comma."""
    from attnscope.findings.head_roles import ROLES

    return _listed(ROLES, incomplete)


def measures(incomplete: str) -> list[str]:
    """Complete names of a number of every head, and `mixing`."""
    from attnscope.base.layer_kinds import MIXING
    from attnscope.findings.row_statistics import LAYER_STATISTICS, STATISTICS

    return _starting(
        ["weight", "value", "projected", *STATISTICS, *LAYER_STATISTICS, MIXING], incomplete
    )


def rollout_measures(incomplete: str) -> list[str]:
    """Complete `weights`, `mixing` and the measures over layers."""
    from attnscope.base.layer_kinds import MIXING
    from attnscope.findings.rollout import ATTENTION, ROLLOUT_MEASURES

    return _starting([ATTENTION, *ROLLOUT_MEASURES, MIXING], incomplete)


def topics(incomplete: str) -> list[str]:
    """Complete topics of the help."""
    from attnscope.cli.topics import TOPICS

    return _starting(list(TOPICS), incomplete)


def help_words(incomplete: str) -> list[str]:
    """Complete what help knows: commands and topics."""
    from attnscope.request.options import COMMANDS

    return _starting(list(COMMANDS), incomplete) + topics(incomplete)


def words(*fixed_words: str) -> Callable[[str], list[str]]:
    """Return a completion out of fixed words."""
    return lambda incomplete: _starting(list(fixed_words), incomplete)


def _listed(words: Iterable[str], incomplete: str) -> list[str]:
    """Complete the last of some words that commas separate, none of them twice."""
    done, comma, last = incomplete.rpartition(",")
    return [
        f"{done}{comma}{word}"
        for word in words
        if word.startswith(last) and word not in done.split(",")
    ]


def _starting(words: list[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _paths(incomplete: str, *, folders_only: bool = False, ending: str = "") -> list[str]:
    """Return paths below what is typed so far; a folder ends in `/`, so that the next one goes on from there."""
    folder, _, start = incomplete.rpartition("/")
    try:
        entries = sorted(
            Path(f"{folder}/" if folder or incomplete.startswith("/") else ".").iterdir()
        )
    except OSError:
        return []
    prefix = incomplete[: len(incomplete) - len(start)]
    visible_names = [
        p for p in entries if p.name.startswith(start) and (start or not p.name.startswith("."))
    ]
    folders = [f"{prefix}{p.name}/" for p in visible_names if p.is_dir()]
    if folders_only:
        files = []
    else:
        files = [p.name for p in visible_names if not p.is_dir() and p.name.endswith(ending)]
    return folders + [prefix + name for name in files]
