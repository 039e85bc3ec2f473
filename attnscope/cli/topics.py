"""Topics of the help: options that several commands share, and what one has to know about them, written once."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.request.options import FIGURE, THE_MACHINE, THE_MODEL, Option

_SCREEN = (
    *(
        "format",
        "json",
        "output",
        "precision",
        *(option.name for option in FIGURE),
        "color",
        "force",
        "quiet",
        "open",
    ),
    *("pager", "verbose", "strict"),
)


@dataclass(frozen=True)
class Topic:
    """A topic of `attnscope help`."""

    title: str
    options: tuple[str, ...]  # names of its options, of any command
    text: str  # paragraphs, separated by empty lines
    forms: tuple[tuple[str, str], ...] = ()  # what one types, and what it means
    page: str = ""  # page of docs/ that goes on

    def options_among(self, options: Sequence[Option]) -> list[Option]:
        """Return its options among those of a command, as they are listed there."""
        return [option for option in options if option.name in self.options and not option.hidden]


def _names(options: Sequence[Option]) -> tuple[str, ...]:
    return tuple(option.name for option in options)


TOPICS = {
    "selections": Topic(
        "Layers, heads, rows and columns",
        ("layer", "head", "query", "key", "against", "at", "special", "top", "by"),
        """
        Layers and heads are numbered from 0. What a screen prints as a label is accepted as input: L2H3, a token, a
        position.

        A query is a row: the token that reads. A key is a column: a token that it reads from. The softmax runs over
        the keys of one query.
        """,
        (
            ("--layer 3", "the fourth layer; -1 is the last"),
            ("--layer 0,2,5-7", "several; 7 is included"),
            ("--layer all", "every layer; mean is their average, auto the one of the chosen head"),
            ("--head L2H3,L0H1", "heads by name, of different layers"),
            ("--query bank", "each row whose token or tokens are this word"),
            ('--query "river bank"', "a phrase"),
            ("--query 3:8", "positions 3 to 7; -1 is the last"),
            ("--query '\"3\"'", "the word 3, not the position"),
            ("--key 0:", "all columns"),
        ),
        "commands",
    ),
    "masks": Topic(
        "Which keys a query may attend to",
        ("mask", "what_if", "scale", "hide"),
        """
        Without {mask}, the model's own mask applies. Another mask is a what-if, and every screen says so. {what_if}
        stack runs the whole model under the new mask; same-scores applies it to the scores that the model computed
        under its own.
        """,
        (
            ("own", "the model's mask"),
            ("causal", "a query sees itself and what comes before"),
            ("bidirectional", "a query sees every token"),
            ("window:N", "keys fewer than N positions away"),
            ("prefix:N", "the first N tokens see each other, and all see them; the rest is causal"),
            ("block:N", "packed documents of N tokens each"),
            ("sink:N", "the first N keys"),
            ("docs:12,30", "packed documents of these lengths; docs:eos splits after the end-of-text token"),
            ("FILE", "a boolean matrix (.json .npy .safetensors), or one that is added to the scores"),
            ("causal+(sink:4|window:1024)", "+ is and, | is or, and parentheses group"),
        ),
        "commands",
    ),
    "spans": Topic(
        "Named parts of a text",
        ("spans", "words", "chat"),
        """
        Spans divide a text, and the weight between them is summed. {query} and {key} then take their names. The
        messages of a {chat} are spans without being asked for. A prompt of several lines comes from standard input, or
        in quotes: --file has one text on each line.
        """,
        (
            ("--spans sentences", "also lines, paragraphs, words, whole-words"),
            ("--spans turns", "of a chat"),
            ("--spans 'Doc 1:,Doc 2:,Question:'", "marks that each begin a span"),
            ("--spans spans.json", "name, start and end of each span"),
            ("--query question --key 'doc 2'", "spans by name"),
        ),
        "spans",
    ),
    "model": Topic(
        "Which model",
        (*_names(THE_MODEL), "engine", "part"),
        """
        Without {model}, the bundled sample is used; the environment variable ATTNSCOPE_MODEL, or attnscope.toml, names
        another default. Nothing is downloaded, except by attnscope pull.
        """,
        (
            ("--model ./my-bert", "a folder with config.json, tokenizer.json and .safetensors"),
            ("--model my-llama.gguf", "a GGUF file"),
            ("--model org/name", "a repository in the Hugging Face cache"),
            ("--config causal", "a bundled stack with random weights; attnscope info --list lists them"),
            ("--engine transformers", "by transformers; auto does so for what attnscope does not have itself"),
        ),
        "checkpoints",
    ),
    "settings": Topic(
        "Defaults of your own",
        ("settings_listed", "profile", "no_settings"),
        """
        attnscope.toml in the working folder or above, or [tool.attnscope] in pyproject.toml, holds defaults of options,
        each under its name without dashes; your own file in ~/.config/attnscope comes after it. What is typed comes
        first, then environment variables, a profile, a command's table, and the top of the file.
        """,
        (
            ('model = "./my-bert"', "at the top: for all commands"),
            ("[run]", "begins the table of a command"),
            ("top = 3", "in that table: for run alone"),
            ("[profile.paper.run]", "the same, only with --profile paper"),
            ("attnscope info --settings", "lists what applies, and where it comes from"),
            ("--no-settings", "leaves all files out, as ATTNSCOPE_NO_SETTINGS=1 does"),
        ),
        "commands",
    ),
    "machine": Topic(
        "Device, precision and memory",
        _names(tuple(option for option in THE_MACHINE if option.name not in ("engine", "part"))),
        """
        Scores and softmax are computed in float32 in every {dtype}. A run that would not fit into memory is refused
        before it starts.
        """,
        page="long-texts",
    ),
    "output": Topic(
        "Screens and files",
        (*_SCREEN, "effects", "table", "percent", "map_scale", "ramp", "sinks", "ids"),
        """
        Results go to standard output, and all else to standard error. The extension of {output} sets the format.
        """,
        (
            ("--json", "exact numbers on standard output; docs/schema.json describes them"),
            ("-o report.json", "the same, in a file"),
            ("-o report.npz", "arrays; also .safetensors"),
            ("-o weights.csv", "a table; also .parquet"),
            ("-o page.html", "a page to walk through, without a network"),
            ("-o figure.svg", "a figure for a paper; also .png and .pdf"),
            ("-o screen.txt", "the screen as text"),
        ),
        "page",
    ),
    "cluster": Topic(
        "Many processes and machines",
        ("shard", "workers", "ray", "actors", "actor_cpus", "actor_gpus", "actor_resources", "sbatch", "max_minutes",
         "status", "parts"),
        """
        Every process computes the same bytes, whatever the number of workers, shards or actors. An interrupted dump
        goes on with the same command.
        """,
        (
            ("--workers 4", "four processes on this machine"),
            ("--shard 1/8 -o part-1.jsonl", "one of eight parts; attnscope merge joins them"),
            ("--sbatch 8", "print a SLURM script of eight tasks"),
            ("--ray auto", "actors of a Ray cluster"),
        ),
        "scale",
    ),
}  # fmt: skip
