"""What help says of an option: its names, and its text with other options and formats named."""

import string

from attnscope.base.errors import spell_options
from attnscope.request.combinations import spell_conditions
from attnscope.request.options import (
    COMMANDS,
    Conditions,
    Option,
    on_command_line,
    option_in,
    rules,
)
from attnscope.studies.registry import kinds, options_of


def names_and_text(command: str, option: Option) -> tuple[str, str]:
    """Return the two columns of an option in the full help."""
    remarks = []
    if option.variable is not None:
        remarks.append(f"env var: {option.variable}")
    if option.default is not None:
        remarks.append(f"default: {option.default}")
    needs = known_conditions(command, option.needs)
    for own_values, needed in needs.items():
        own = f"{own_values.replace('|', ', ')}: " if own_values else ""
        remarks.append(spell_options(f"{own}with {spell_conditions(needed)}", on_command_line))
    # what some of its values exclude, errors say
    if excluded := known_conditions(command, option.excludes).get(""):
        remarks.append(spell_options(f"not with {spell_conditions(excluded)}", on_command_line))
    if option.required and not option.argument:
        remarks.append("required")
    remark = f"  [{'; '.join(remarks)}]" if remarks else ""
    return names_of(option), described(command, option.help) + remark


def known_conditions(command: str, conditions: Conditions) -> dict[str, list[str]]:
    """Return conditions about options that a command has, by the values of the option, empty for all of them."""
    names = {option.name for option in options_of(command)}
    return {
        own_values: [condition for condition in listed if option_in(condition) in names]
        for own_values, listed in rules(conditions)
    }


def names_of(option: Option) -> str:
    """Return the names of an option with the placeholder of its value."""
    if option.argument:
        return option.metavar
    name = option.off or option.spelled
    short = f"{option.short}, " if option.short else ""
    return f"{short}{name} {option.metavar}".rstrip()


def described(command: str, text: str) -> str:
    """Return a text of help in which `{query}` names an option, and `{endings}` what only the command line knows."""
    names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    return text.format(**{name: _spelled(command, name) for name in names})


def _spelled(command: str, name: str) -> str:
    from attnscope.batch.formats import DUMP_FORMATS, DUMPS, TABLES

    if name == "row_statistics":
        return "{row_statistics}"  # takes NumPy: `with_statistics` replaces it where it is shown
    endings = {findings_kind.name: findings_kind.formats for findings_kind in kinds()}
    formats = {
        "endings": lambda: " ".join(endings[command]),
        "table_endings": lambda: " ".join(
            e for e in endings["effects"] if e not in endings["ablate"]
        ),
        "dumps": lambda: ", ".join(DUMPS),
        "tables": lambda: ", ".join(TABLES),
        "or_tables": lambda: " or ".join(TABLES),
        "resumed": lambda: ", ".join(
            dump_format.ending
            for dump_format in DUMP_FORMATS
            if dump_format.ending and dump_format.resumes
        ),
        "whole": lambda: ", ".join(
            dump_format.ending
            for dump_format in DUMP_FORMATS
            if dump_format.batch and not dump_format.resumes
        ),
    }
    if name in formats:
        return formats[name]()
    every = (option for options in (options_of(command), *COMMANDS.values()) for option in options)
    return next(option.spelled for option in every if option.name == name)


def with_statistics(text: str) -> str:
    """Name the row statistics in a text of help."""
    if "{row_statistics}" not in text:
        return text
    # takes NumPy, which other help does without
    from attnscope.findings.row_statistics import STATISTICS

    return text.replace("{row_statistics}", ", ".join(STATISTICS))
