"""What programs and coding agents read instead of help: all commands as JSON, a SKILL.md, and an llms.txt."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnscope.base.errors import Exit
from attnscope.base.version import __version__
from attnscope.cli.commands import ALIASES, COMMANDS, load
from attnscope.cli.option_text import described, known_conditions, with_statistics
from attnscope.cli.topics import TOPICS
from attnscope.request.options import COMMON, Option
from attnscope.studies.registry import STUDIES, options_of, study

EXIT_CODES: dict[int, str] = {
    Exit.DONE: "done",
    Exit.FAILED: "error, or a check, doctor, --tolerance or --strict failed",
    Exit.USAGE: "wrong usage",
    Exit.SOME_RECORDS_FAILED: "a batch finished, but some records failed",
    Exit.BUG: "a bug in attnscope",
    129: "ended by SIGHUP",
    130: "ended by SIGINT (Ctrl-C)",
    Exit.READER_GONE: "the reader of standard output closed it",
    143: "ended by SIGTERM",
}
VARIABLES = {
    "ATTNSCOPE_MODEL": "default of --model",
    "ATTNSCOPE_NO_SETTINGS": "if set, settings files are not read, as with --no-settings",
    "ATTNSCOPE_ERRORS": "default of --errors",
    "ATTNSCOPE_PAGER": "pager of long output, before PAGER",
    "ATTNSCOPE_DEBUG": "if set, errors come with a traceback",
    "NO_COLOR": "if set, no colour is written",
    "COLUMNS": "width of tables",
}
# Python function of a command
_PYTHON = {
    **{name: name for name in (*STUDIES, "explore") if name != "learn"},
    "run": "inspect",
    "batch": "write_dump",
}
_SKILL = """\
---
name: attnscope
description: >-
  Look at attention inside a transformer from the command line: raw scores, masked scores, softmax weights, top
  contributors, roles of heads, ablation and activation patching, checks of masks and padding. Use when asked which
  tokens a model or head reads, whether an attention mask is right, or to export attention of many texts.
---

# attnscope {version}

attnscope runs a text through a checkpoint (a folder, a .gguf file, org/name in the Hugging Face cache, or the bundled
sample) and prints attention with numbers. It needs no network; only `attnscope pull` downloads.

## Rules

- Data goes to standard output, all else to standard error. `--quiet` prints data only.
- `--json` prints exact findings on one line; `-o FILE` writes them, and the extension sets the format.
- `--errors json` makes every line of standard error one JSON object, with `kind`, `message`, `where`, `hint` and
  `exit_code`.
- TEXT is one argument in quotes. It is never a file name: `--file` reads one text per line, `-` standard input.
- Layers and heads are numbered from 0. Labels that are printed, such as L2H3, a token or a position, can be typed.
- `--no-settings` ignores attnscope.toml, for results that do not depend on the folder.
- `attnscope COMMAND -h` is short; `attnscope help COMMAND` has every option; `attnscope help --json` has all of it as
  JSON, with types, defaults and schemas.

## Commands
{commands}
## What to type
{topics}
## Exit codes

{exit_codes}

## JSON

`docs/schema.json` describes all findings, with the axes of every array; null among masked scores is a key that the mask
forbids.

```sh
{recipes}
```

## Python

`import attnscope` has the same commands as functions with the same names of options: {functions}.
"""
RECIPES = (
    'attnscope run "The bank by the river" --json | jq .texts[0].tokens',
    "attnscope heads --json | jq .main",
    "attnscope check --json | jq .checks",
    "attnscope info --json | jq .parameters",
)


def catalog() -> dict[str, Any]:
    """Return the commands, their options, and what they find, as plain data."""
    return {
        "program": "attnscope",
        "version": __version__,
        "exit_codes": {str(int(code)): meaning for code, meaning in EXIT_CODES.items()},
        "environment": VARIABLES,
        "common_options": [_option("run", option) for option in COMMON],
        "commands": [_command(name) for name in COMMANDS],
        "topics": {
            name: {"title": topic.title, "options": list(topic.options), "forms": dict(topic.forms)}
            for name, topic in TOPICS.items()
        },
    }


def catalog_text() -> str:
    """Return the catalogue as JSON."""
    return json.dumps(catalog(), ensure_ascii=False, indent=1) + "\n"


def _command(name: str) -> dict[str, Any]:
    command = load(name)
    summary, _, more = command.help.partition("\n")
    function = _PYTHON.get(name)
    return {
        "name": name,
        "aliases": [alias for alias, of in ALIASES.items() if of == name],
        "summary": summary,
        "help": " ".join(more.split()),
        "python": None if function is None else f"attnscope.{function}",
        "examples": command.examples.splitlines(),
        "options": [_option(name, option) for option in options_of(name)],
        "findings": [] if name not in STUDIES else list(_findings(name)),
    }


def _findings(name: str) -> Iterator[dict[str, Any]]:
    for findings_kind in study(name).kinds:
        yield {
            "kind": findings_kind.name,
            "files": list(findings_kind.formats),
            "schema": findings_kind.schema,
            "definition": f"docs/schema.json#/$defs/{findings_kind.findings.partition(':')[2]}",
        }


def _option(command: str, option: Option) -> dict[str, Any]:
    names = [name for name in (option.short, option.spelled, option.off) if name]
    return {
        "name": option.name,
        "argument": option.argument,
        "flags": [] if option.argument else names,
        "aliases": list(option.aliases),
        "metavar": option.metavar or None,
        **_type_of(option),
        "default": option.default,
        "required": option.required,
        "repeatable": option.several != "no",
        "compared_if_repeated": option.several == "compared",
        "common": bool(option.brief),
        "alternative_spelling": option.hidden,
        "environment": option.variable,
        "topics": [name for name, topic in TOPICS.items() if option.name in topic.options],
        "needs": known_conditions(command, option.needs),
        "excludes": known_conditions(command, option.excludes),
        "overrides": list(option.overrides),
        "section": option.group,
        "help": with_statistics(described(command, option.help)),
    }


def _type_of(option: Option) -> dict[str, Any]:
    if option.is_flag:
        return {"type": "flag"}
    if option.bounds is not None:
        low, high = option.bounds
        return {"type": "integer", "minimum": low, "maximum": high}
    if option.read is Path:
        return {"type": "path"}
    if isinstance(option.complete, tuple) and "|".join(option.complete) == option.metavar:
        return {"type": "choice", "choices": list(option.complete)}
    return {"type": "text"}


def skill() -> str:
    """Return a SKILL.md: what a coding agent has to know to drive the command line."""
    commands = []
    for name in COMMANDS:
        command = load(name)
        examples = "\n".join(command.examples.splitlines()[:2])
        commands.append(
            f"\n`attnscope {name}`: {command.help.partition(chr(10))[0]}\n\n```sh\n{examples}\n```\n"
        )
    topics = []
    for name, topic in TOPICS.items():
        if topic.forms:
            rows = "\n".join(
                f"| `{_cell(form)}` | {_cell(meaning)} |" for form, meaning in topic.forms
            )
            title = f"{topic.title} (`attnscope help {name}`)"
            topics.append(f"\n{title}:\n\n| typed | meaning |\n|---|---|\n{rows}\n")
    functions = [f"`{function}`" for name in COMMANDS if (function := _PYTHON.get(name))]
    return _SKILL.format(
        version=__version__,
        commands="".join(commands),
        topics="".join(topics),
        exit_codes="\n".join(f"- {int(code)}: {meaning}" for code, meaning in EXIT_CODES.items()),
        recipes="\n".join(RECIPES),
        functions=", ".join(functions),
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
