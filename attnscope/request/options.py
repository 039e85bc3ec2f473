"""Every option, declared once: its name, meaning, default, how its value is read, and which commands take it.

The command line, its help and completion, the arguments of the Python functions and the fields of a RunConfig follow
from these declarations. An option is a row here, a place in COMMANDS, and the code that obeys it.

Help names another option as `{query}`, and text that is known only to the command line as `{endings}`. `-h` lists the
rows that have a `brief` line, `--help` all that are not hidden.

A condition of `needs` or `excludes` is one of:

    key                      the option is given
    each=edge|span           it has one of these values, given or by default
    measure!=mixing          it is given, with another value
    output=.csv|.parquet     it names a file that ends so

What holds only for some values of the option itself is a mapping from these: `{"edge": ("layer", "head")}`; `!logit` is
every other value. Of the conditions of `needs`, one is enough. `request/combinations.py` refuses the rest.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from attnscope.base.errors import OptionName, arg
from attnscope.findings.record_parts import EXACT_PARTS, PARTS, RECORD_PARTS
from attnscope.request import arguments
from attnscope.request.arguments import (
    LESSON_NAMES,
    STAGES,
    By,
    Dtype,
    Each,
    EngineWord,
    PartWord,
    RankBy,
    Replacement,
    WhatIf,
)
from attnscope.request.masks.expression import MASK_FILES, parse_mask
from attnscope.request.masks.terms import TERMS, Own
from attnscope.request.selection import (
    POOL,
    PRINTED,
    PositionSelection,
    parse_cut,
    parse_indices_or_label,
    parse_positions,
)
from attnscope.request.spans import SPAN_WORDS, parse_spans

Reader = Callable[[str], Any]
Conditions = tuple[str, ...] | Mapping[str, tuple[str, ...]]
TEXT = "Text"
MODEL = "Model"
COMPUTE = "What to compute"
SHOW = "What to show"
MACHINE = "Machine"
INPUT = "Input"
OUTPUT = "Output"
MEASURE = "What to measure"
CUT = "What to cut"
OTHER = "Options"
DEFAULT_STAGES = "scores,masked,weights"
BRIEF = "brief"
ALL = "all"
KEPT = (BRIEF, *EXACT_PARTS, ALL)
BRIEF_STATISTICS = ("entropy", "first", "special", "self")
BRIEF_DIGITS = 3
ALL_PARTS = tuple(
    name
    for name in EXACT_PARTS
    if not (PARTS[name].runs_again or PARTS[name].of_spans or PARTS[name].averaged)
)
PATIENCE = 5  # seconds that a command which needs no text waits for a pipe to begin


@dataclass(frozen=True)
class Option:
    """An option, or an argument, of one or several commands."""

    # name in Python, and of the field of a RunConfig or of a dump's settings that it sets
    name: str
    group: str
    help: str
    read: Reader | None = None  # parses the typed text; None for text as it is
    metavar: str = ""  # placeholder of the value in the help; "" for a flag
    default: Any = None  # default, as typed; None for none
    flag: str | None = None  # its name on the command line; None for `--name`
    short: str | None = None
    # name of a function of `cli.completion`, or the words to complete
    complete: str | tuple[str, ...] = ()
    # how often it may be given: `no`, `yes` (its values belong together), or `compared`
    several: Literal["no", "yes", "compared"] = "no"
    argument: bool = False  # whether it is an argument, not an option
    required: bool = False
    # flag with the opposite meaning, or False for a flag that sets its field to False
    off: str | Literal[False] | None = None
    variable: str | None = None  # environment variable that sets it
    brief: str = ""  # its line in `-h`; empty for an option that only `--help` lists
    aliases: tuple[str, ...] = ()  # further names that the command line takes, and no help lists
    hidden: bool = False  # another way to say what a listed option says, which no help lists
    # least and largest whole number; None for other values
    bounds: tuple[int, int | None] | None = None
    overrides: tuple[str, ...] = ()  # options that it takes the place of if they come from settings
    excludes: Conditions = ()  # conditions under which it is refused
    needs: Conditions = ()  # conditions of which one is needed
    why: str = ""  # why it excludes others
    instead: str = ""  # what takes its place beside other values of what it needs

    @property
    def settings_left_out(self) -> tuple[str, ...]:
        """Options whose defaults from settings are left out if this one is typed."""
        excluded = [
            option_in(condition) for _, listed in rules(self.excludes) for condition in listed
        ]
        return (*self.overrides, *excluded)

    @property
    def default_value(self) -> Any:
        """Its default, read; None for none."""
        if self.is_flag:
            return None if self.off else self.off is False
        if self.read is None or self.default is None:
            return self.default
        return self.read(self.default)

    @property
    def spelled(self) -> str:
        """Name on the command line."""
        if self.argument:
            return self.metavar
        return self.flag or f"--{self.name.replace('_', '-')}"

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar and not self.argument


def rules(conditions: Conditions) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield values of an option, separated by `|` and empty for all, with the conditions that hold for these."""
    if isinstance(conditions, Mapping):
        yield from conditions.items()
    elif conditions:
        yield "", conditions


def option_in(condition: str) -> str:
    """Return the name of the option that a condition is about."""
    return condition.partition("=")[0].removesuffix("!")


def _positions(option: str, text: str) -> PositionSelection:
    return parse_positions(arguments.text(option, text))


def choice(
    name: str, group: str, words: Any, help: str, default: str | None = None, **more: Any
) -> Option:
    """Declare an option whose values are the words of a Literal type."""
    choices: tuple[str, ...] = words.__args__
    option = arg(more.get("flag", name).lstrip("-"))
    read = partial(arguments.one_of, option, words, hint=more.pop("hint", None))
    return Option(name, group, help, read, "|".join(choices), default, complete=choices, **more)


def number(
    name: str, group: str, low: int, help: str, high: int | None = None, **more: Any
) -> Option:
    """Declare an option that takes a whole number within bounds."""
    read = partial(arguments.number, arg(name), low, high)
    return Option(name, group, help, read, more.pop("metavar", "N"), bounds=(low, high), **more)


_NUMBERS = "or numbers: 3, -1 (the last), or 0,2,5-7 (7 is included)."
_AUTO_HEAD = (
    "auto picks the head with the most weight from {query} on {key}; without {key}, the one with the most "
    "content weight: on other words, beyond what their distance explains and what all rows give to the same word."
)
_DATA_ONLY = "Print data only: no header, hints or notes, and no progress on standard error."
_TABLE_OR_JSON = Literal["table", "json"]
_FORMATS = Literal["table", "heat", "json"]
_MASK_FORMS = ", ".join(term.form for term in TERMS if term is not Own)

# Rows of a table: one argument a line would make it twice as long.
# fmt: off
TEXTS = (
    Option("text", TEXT, "Text to inspect; without it, or with -, standard input is read as one text.", metavar="TEXT",
        argument=True, brief="Text to look at; - reads standard input."),
    Option("file", TEXT, "Read one text per line from a file instead.", Path, "PATH", complete="files",
        excludes=("text", "pair", "image", "audio"),
        brief="Read one text per line from a file."),
    Option("chat", TEXT, "Read messages instead (JSON: a list of role and content, or an object with messages, "
        "documents and tools) and render them with the model's own chat template; - reads standard input.",
        metavar="FILE|-", complete="files", brief="Read the messages of a chat (JSON).",
        excludes=("text", "file", "pair", "context", "keep_newline", "audio")),
    Option("image", TEXT, "Picture that belongs to the text, or that a vision model sees in place of one (PNG, JPEG, "
        "WebP …; install attnscope[images]). Repeatable. Its patches are tokens whose names are places, such as "
        "image:3,4 (row 3, column 4).", metavar="FILE", complete="files", several="yes"),
    Option("audio", TEXT, "Sound that the model hears (.wav, .flac or .ogg; install attnscope[audio]), such as speech "
        "for Whisper, which writes it down; with TEXT, the text that was said. Frames are named by their seconds: "
        "--key 1.0s, --query 2.4s-3.1s.", metavar="FILE", complete="files", excludes=("image",)),
    Option("keep_newline", TEXT,
        "Keep the last newline of standard input; otherwise it is left out, since echo adds one."),
    Option("pair", TEXT, "Second segment, for encoders such as BERT.", metavar="TEXT"),
    Option("context", TEXT, "Text that provides keys and values in cross-attention.", metavar="TEXT"),
)
# what is about a text or a model, none of which is read or run beside queries and keys
_OF_TEXT = ("text", "file", "chat", "pair", "context", "keep_newline", "image", "audio")
_OF_MODEL = ("model", "config", "adapter", "tokenizer", "ignore_key", "trust_config", "part", "dtype", "engine",
    "hash_weights", "scale", "what_if!=same-scores", "show_padding")
QKV = Option("qkv", MODEL, "Queries, keys and values that another program computed (.safetensors or .npz) instead of a "
    "model and a text.", metavar="FILE", complete="files", excludes=(*_OF_TEXT, *_OF_MODEL),
    why="tokens, queries and keys are given, and no model runs")
THE_MODEL = (
    Option("model", MODEL, "Checkpoint folder (config.json, tokenizer.json, *.safetensors), GGUF file, repository in "
        "the Hugging Face cache (org/name), or name of a bundled sample; default: the bundled sample.",
        metavar="PATH|NAME", short="-m", complete="samples", variable="ATTNSCOPE_MODEL",
        brief="Folder, .gguf, org/name, or riverbank (sample)."),
    Option("adapter", MODEL, "LoRA adapter to add to the weights: a folder with adapter_config.json and "
        "adapter_model.safetensors; none adds no adapter.", metavar="PATH", complete="files"),
    Option("config", MODEL, "Stack described in TOML, or name of a bundled config. Weights are random unless the stack "
        "names a weights file.", metavar="FILE|NAME", complete="configs", overrides=("qkv",),
        excludes=("model", "adapter!=none", "tokenizer", "ignore_key", "trust_config"),
        why="a TOML stack is a whole model, which names its tokenizer"),
    Option("tokenizer", MODEL, "Use this tokenizer instead of the model's own: a tokenizer.json, vocab.txt, vocab.json "
        "or tokenizer.model, or a folder that has one.", metavar="PATH", complete="files"),
    QKV,
    Option("ignore_key", MODEL, "Ignore a key of config.json that would be refused; repeatable. Recorded in the "
        "output, and noted on every screen.", metavar="NAME", several="yes"),
    Option("trust_config", MODEL, "Accept a config.json that refers to its own model code. The code is not run, so the "
        "real model may differ from what is shown."),
)
COMPLETE_MODEL = tuple(option for option in THE_MODEL if option.name != "qkv")
THE_MACHINE = (
    Option("device", MACHINE, "Device; auto uses CUDA for all but small work.", arguments.device,
        "auto|cpu|cuda[:N]|mps", "auto", complete=("auto", "cpu", "cuda", "mps")),
    choice("dtype", MACHINE, Dtype, "Data type of the model; scores and softmax are always float32.",
        default="float32"),
    Option("truncate", MACHINE, "Truncate texts that exceed the model's limit, with a note."),
    Option("max_memory", MACHINE, "Limit memory, such as 800M or 1.5G; default: half of the free memory.",
        arguments.size, "SIZE"),
    number("threads", MACHINE, 1,
        "Number of CPU threads; default: OMP_NUM_THREADS, or the CPUs available to this process.", arguments.THREADS),
    choice("engine", MACHINE, EngineWord, "Run the model with attnscope's own code (native), or with transformers "
        "(install attnscope[transformers]), which has nearly every architecture. auto: "
        "native if it has this one, else transformers.",
        default="auto"),
    choice("part", MACHINE, PartWord, "Attention of an encoder-decoder to show; for "
        "decoder and cross, TEXT is the decoder's input and {context} the encoder's."),
    Option("hash_weights", MACHINE, "Record a SHA-256 hash of all weights in the output."),
)
LAYER = Option("layer", COMPUTE, f"Layers, counted from 0: auto, all, mean, {_NUMBERS}",
    partial(parse_indices_or_label, "layer"), "LAYERS", "auto", short="-l", complete=("auto", "all", "mean"),
    brief="Layers: auto, all, mean, 3, -1, or 0,2,5-7.")
HEAD = replace(LAYER, name="head", help=f"Heads, in the same form, or L2H3,L0H1. {_AUTO_HEAD}",
    read=partial(parse_indices_or_label, "head"), metavar="HEADS", short="-H",
        brief="Heads, in the same form, or L2H3.")
QUERY = Option("query", COMPUTE, "Rows: positions (3, -1, or 3:8, which excludes 8), words or phrases, separated by "
    "commas. Numbers that are not positions, and anything in quotation marks, are words.",
        partial(_positions, arg("query")),
    "ROWS", short="-q", brief="Rows: words or positions, such as bank or 3:8.")
KEY = Option("key", COMPUTE, "Columns, in the same form; the slice 0: selects all.",
    partial(_positions, arg("key")), "COLUMNS",
    brief="Columns, in the same form.")
SPANS = Option("spans", COMPUTE, f"Divide the text into named spans: {', '.join(SPAN_WORDS[:-1])}, turns (of a chat), "
    "marks that each begin a span ('Doc 1:,Doc 2:,Question:'), or a .json or .jsonl file with name, start and "
    'end of each span (in characters, or with "unit": "tokens"). {query} and {key} then take the names of spans.',
    parse_spans, "SPANS", complete=SPAN_WORDS)
MASK = Option("mask", COMPUTE, f"own (the model's), {_MASK_FORMS}, or a file with a boolean or additive matrix "
    f"({' '.join(MASK_FILES)}); combine with + (and), | (or) and parentheses.", parse_mask, "MASK", "own",
    complete="masks", brief="own, causal, bidirectional, window:N, or a file.")
WHAT_IF = choice("what_if", COMPUTE, WhatIf,
    "Apply another {mask} to the whole stack, or only to the softmax over the model's own scores.", default="stack",
    needs=("mask", "hide", "qkv", "score_mod"))
HIDE = Option("hide", COMPUTE,
    'Hide tokens from every query, in the same form as {query}, such as "[CLS],[SEP]" or 3,7; none hides no token.',
    lambda text: None if text == "none" else _positions(arg("hide"), text), "TOKENS")
STAGE = Option("stages", COMPUTE, f"Stages to show, separated by commas: {', '.join(STAGES)}, or none; default: "
    f"{DEFAULT_STAGES}, or weights alone if all three fill more than a screen.", arguments.stages, "STAGES",
    flag="--stage", complete="stages", aliases=("--stages",), brief=f"Any of {', '.join(STAGES)}.")
TOP = number("top", COMPUTE, 0, "Contributors per token; 0 hides them.", metavar="K", default="3",
    brief="Contributors per token, default 3; 0 for none.")
_RANK = "Rank contributors by weight α, by α·‖v‖, or by α·‖v W‖ after the output projection"
BY = choice("by", COMPUTE, By, f"{_RANK}.", default="weight", brief="Rank contributors by another measure.",
    excludes=("top=0",), why="no contributor is ranked")
BY_LOGIT = choice("by", COMPUTE, RankBy,
    f"{_RANK}; logit also shows how much each part of the model adds to the logit of {{target}}, and opens the head "
    "that adds most.", default="weight", brief="Rank contributors by another measure.",
    excludes={"!logit": ("top=0",)}, why="no contributor is ranked")
SPECIAL = Option("special", COMPUTE, "Exclude special tokens and the first token from the ranking.",
    flag="--no-special", off=False)
POOLED = number("pool", COMPUTE, 1, "Show a map of N × N runs of tokens and the most attended tokens instead of "
    f"matrices. Tables of texts longer than {PRINTED} tokens show a {POOL} × {POOL} map unless {{query}} or {{key}} is "
    "given.", arguments.LARGEST_POOL)
TARGET = Option("target", COMPUTE, "Token whose logit {by} logit breaks down, such as ' store' with its leading space; "
    "given twice, the difference between the two logits. Implies {by} logit. Default: the most probable token.",
    metavar="TOKEN", several="yes", excludes=("by!=logit",), why="a target is the token of a logit")
WORDS = Option("words", COMPUTE,
    "Merge the pieces of a word: weights are summed over its keys and averaged over its queries.",
    brief="Merge the pieces of a word.")
_BY_ENDING = {"json": ("output!=.json",), "heat": ("output",), "table": ("output!=.txt|.svg|.png|.pdf|.html",)}
_WHY_ENDING = "the ending of a file sets its format"
FORMAT = replace(choice("format", SHOW, _FORMATS, "Draw tables (default) or heat maps.",
    overrides=("json",), excludes=_BY_ENDING, why=_WHY_ENDING), metavar="table|heat")
DATA_FORMAT = choice("format", SHOW, _TABLE_OR_JSON, "Same as {json} if it is json.", hidden=True,
    overrides=("json",), excludes=_BY_ENDING, why=_WHY_ENDING)
JSON = Option("json", SHOW, "Print the exact findings as JSON.",
    excludes=("format=table|heat", "output!=.json"), why="findings are written in one format")
FILE_OUT = Option("output", SHOW, "Write to a file; the extension sets the format: {endings}.", Path, "FILE",
    short="-o", complete="files", brief="Write to a file: .html .json .svg .txt …",
    overrides=("format", "json", "open"))
PRECISION = number("precision", SHOW, 0, "Decimal places in tables; json, .safetensors and .npz are exact.", 9,
    metavar="DIGITS", default="2")
QUIET = Option("quiet", SHOW, _DATA_ONLY)
VERBOSE = Option("verbose", SHOW, "In a terminal, show the model's full path, its device and all notes, every matrix "
    "of {stages}, and small contributors one by one.")
VERBOSE_FACTS = replace(VERBOSE, help="In a terminal, show the model's full path, its device and all notes.")
RAMP = (
    choice("ramp", SHOW, Literal["sqrt", "linear", "log"], "How colours follow weights in heat maps, which this asks "
        "for: by their root, so that small ones are seen, by themselves, or by their logarithm down to 0.001.", "sqrt",
        excludes=("output=.html", "open"), why="the key L changes the ramp of a page"),
    Option("sinks", SHOW, "End the colours of heat maps, which this asks for, at the largest weight that is not on the "
        "first token, a special one or a learned sink, instead of at 1.", flag="--without-sinks", off=False,
        excludes=("output=.html|.svg|.png|.pdf", "open"),
        why="the key z takes sinks out of a page, and colours of figures end at 1, so that two can be compared"),
)
_PICTURE = ("output=.svg|.png|.pdf",)
FIGURE = (
    Option("width", SHOW, "Width of an .svg, .png or .pdf, such as 5.5in, 8cm, 84mm or 397pt; column is 3.25in. "
        "Matrices fill it with squares, and no letter is smaller than 6 pt.",
        partial(arguments.figure_width, arg("width")),
        "WIDTH|column", needs=_PICTURE),
    choice("labels", SHOW, Literal["tokens", "positions", "none"],
        "In a figure, name rows and columns by this alone, instead of both.", needs=_PICTURE),
    choice("only", SHOW, Literal["map", "bars"],
        "In a figure, draw only matrices, maps or strips, or only bars: without header, tables and notes.", needs=_PICTURE),
    choice("font", SHOW, Literal["sans", "serif"], "Letters of a figure.", "sans", needs=_PICTURE),
)
_OUTPUT = (
    choice("color", SHOW, Literal["auto", "always", "never"], "When to use colour.", default="auto"),
    Option("force", SHOW, "Overwrite the {output} file if it exists."),
    QUIET,
    Option("header", SHOW, "Leave out the header, hints and notes, also of a page.", flag="--no-header", off=False,
        hidden=True),
    Option("open", SHOW,
        "Open the result as a page in the browser: the {output} file if it is an .html, or else a temporary file.",
        excludes=("format", "json", "output!=.html"), why="a browser opens a page"),
    Option("pager", SHOW, "Do not page output that is longer than the terminal.", flag="--no-pager", off=False),
)
STRICT = Option("strict", SHOW, "Exit with 1 if what stands above the numbers changes how they are read: random "
    "weights, unknown words, a truncated text, a mask that hides nothing, or a note on the model.")
_OUTPUT_OF_CHECKS = tuple(option for option in _OUTPUT if option.name != "open")
SCALE = Option("scale", COMPUTE, "What if every layer multiplied its scores by X in place of the model's own factor? "
    "none multiplies by 1.", arguments.scale, "X|none")
SELECTION = (LAYER, HEAD, QUERY, KEY, MASK, WHAT_IF, HIDE, STAGE, TOP, BY, SPECIAL)


def _with_brief(options: tuple[Option, ...], **briefs: str) -> tuple[Option, ...]:
    """Give options a line in the `-h` of a command, or an empty one to leave them out of it."""
    return tuple(replace(option, brief=briefs.get(option.name, option.brief)) for option in options)


def _shown(precision: str, default: str, format: Option = DATA_FORMAT, output: str | None = None) -> tuple[Option, ...]:
    file = FILE_OUT if output is None else replace(FILE_OUT, help=output)
    verbose = VERBOSE if format is FORMAT else VERBOSE_FACTS
    return format, JSON, file, replace(PRECISION, help=precision, default=default), *FIGURE, *_OUTPUT, verbose


def _compared(options: tuple[Option, ...], *names: str) -> tuple[Option, ...]:
    return tuple(replace(option, several="compared") if option.name in names else option for option in options)


CUTS = Option("cuts", CUT, "What to cut: a head (L5H1), several (L5-8H0-2), all heads of a layer (L5), all heads (*), "
    'or edges of any of these: "*: ←[CLS]", "L5H1: it←animal" (query←key; <- is the same as ←). Tokens are '
    "written as for {query}. Repeatable; all cuts are made together.", parse_cut, "CUT", flag="--cut", several="yes",
    aliases=("--cuts",), brief="Head L5H1, layer L5, or edge 'L5H1: it<-animal'.")
RAN_WITHOUT = replace(CUTS, group=COMPUTE,
    help="Show the attention of the model without a head (L5H1) or an edge (L5H1: "
    "it←animal), written as for ablate, which shows what changes. Repeatable.", brief="",
    excludes=("generate", "measure", "by=logit", "target"), why="weights are shown")
RUN = (
    *TEXTS, *THE_MODEL,
    LAYER,
    replace(HEAD, excludes={"!auto|all|mean": ("measure!=weights|mixing",)}, why="the measure is of all heads together"),
    *SELECTION[2:5],
    replace(WHAT_IF, excludes=("generate", "by=logit", "target", "measure=value-zeroing|value-zeroing-rollout"),
        why="same-scores changes the weights that are shown, and nothing that the model computes"),
    SCALE, *SELECTION[6:-2],
    BY_LOGIT, SPECIAL, SPANS, RAN_WITHOUT, POOLED,
    Option("measure", COMPUTE, "Show how much each token contributes to every token over {layer}, instead of the "
        "heads' weights: rollout, rollout-no-residual, value-zeroing (of each layer) or value-zeroing-rollout. With "
        "mixing, show the matrices of layers without softmax, which are shown anyway if {layer} names only such layers.",
        arguments.rollout_measure, "NAME", "weights", complete="rollout_measures",
        excludes={"!weights": ("words", "effects", "show_padding", "by=logit", "target", "least", "predict", "generate"),
            "!weights|mixing": ("stages", "by!=weight", "pool")},
        why="a measure takes the place of the heads' weights, and of all that follows from them"),
    Option("show_padding", COMPUTE, "With several texts ({file}), also show the rows and columns of padding."),
    Option("predict", COMPUTE, "Leave out the five most probable tokens (the next one, or those at every [MASK]). They "
        "are shown if the checkpoint has an output head, all layers run anyway and the texts are short; --predict "
        "shows them in any case.", off="--no-predict"),
    number("generate", COMPUTE, 0,
        "Continue the text by up to N tokens, each the most probable one, and show what each attended to.",
        arguments.GENERATED, default="0", brief="Continue the text, one row for each new token."),
    TARGET,
    replace(WORDS, excludes=("measure", "stages!=weights", "by=value|projected"), why="only weights are merged"),
    number("least", COMPUTE, 0, "List the K tokens that receive the least weight from other tokens; over all layers "
        "and heads, unless {layer} or {head} selects some.", metavar="K", default="0"),
    Option("input_ids", TEXT, "Read token ids instead of TEXT: a JSON list, or an object with input_ids and optionally "
        "attention_mask, position_ids and token_type_ids, named as in transformers. Each has the shape (tokens) or "
        "(texts, tokens), padded on either side. - reads standard input.", metavar="FILE|-", complete="files",
        excludes=("text", "file", "pair", "context", "keep_newline", "image", "audio", "chat", "qkv", "spans",
            "generate")),
    Option("ids", SHOW, "List the tokens with their ids, in tables; json always has them.",
        excludes=("output", "json", "format=json", "open"), why="files and json have all tokens with their ids"),
    Option("percent", SHOW, "Write weights as percentages in tables and pictures."),
    choice("map_scale", SHOW, Literal["row", "max"], "Where the colours of a map on a picture end: row is a share of "
        "the row that is the same for all heads, so that a head whose weight is on CLS or registers is pale; max is "
        "the largest patch of each map, which hides how much is elsewhere.", default="row"),
    *RAMP,
    Option("effects", SHOW, "Leave out what the model loses without each head, which a page ({output} page.html) has "
        "if cutting all heads one by one takes some seconds; with {query} and {key}, up to a minute. --effects measures "
        "it in any case.", off="--no-effects", needs=("output=.html", "open")),
    choice("table", SHOW, Literal["matrices", "contributors", "rows", "columns", "spans"], "Table that a {or_tables} "
        "file holds: matrices (one row per cell of a stage; default), contributors (one row per query and rank), rows "
        "(statistics, one row per query), columns (of a map) or spans (of {spans}).", needs=("output=.csv|.parquet",)),
    *_shown(PRECISION.help, "2", FORMAT), STRICT,
    *THE_MACHINE,
)
COMPARED_STAGES = replace(STAGE, help=f"Stages that {{tolerance}} compares and json has (tables show the weights), "
    f"separated by commas: {', '.join(STAGES)}, or none; default: {DEFAULT_STAGES}.",
    needs={"!weights": ("tolerance", "json", "format=json", "output=.json")})
# with a model, the arrays are compared with what it computes from a text
_COMPARED_MODELS = tuple(replace(option, excludes=()) if option is QKV else option for option in THE_MODEL)
COMPARE = (
    *_compared((replace(TEXTS[0], read=arguments.text_or_report), *TEXTS[1:]), "text", "chat"),
    *_compared(_COMPARED_MODELS, "model", "config", "adapter", "tokenizer", "qkv"),
    *_compared((*SELECTION[:5], replace(WHAT_IF, needs=()), SCALE, SELECTION[6], COMPARED_STAGES, *SELECTION[8:]),
        "mask", "hide", "layer", "head"),
    SPANS, POOLED,
    Option("summary", SHOW, "Show only how much weight moves in each head, of all layers and heads unless selected.",
        brief="Only how much weight moves in each head."),
    *RAMP,
    *_shown("Decimal places in tables; json is exact.", "2", FORMAT), STRICT,
    *_compared(THE_MACHINE, "dtype", "engine"),
    Option("tolerance", SHOW, "Fail (exit code 1) if any weight differs by more than X, or a cell of another stage by "
        "more than X times the largest value of its layer; all layers and heads unless selected. Print a one-line "
        "verdict and the worst cell of every stage instead of tables ({format} prints both).",
        partial(arguments.tolerance, arg("tolerance")), "X", brief="Exit with 1 if any weight differs by more."),
    Option("relative", SHOW, "Allow R·|first| on top, as in numpy.testing.assert_allclose.",
        partial(arguments.tolerance, arg("relative")), "R"),
)
EXPLAIN = (
    *TEXTS, *THE_MODEL,
    replace(QUERY, help="Token to explain: a position such as 3, or a word.", metavar="TOKEN",
        brief="Token to explain: a word, or a position such as 3."),
    replace(KEY, help="Key whose dot product is broken down; default: the one with the largest dot product.",
        metavar="TOKEN", brief="Key whose dot product is broken down."),
    replace(LAYER, help="Layer, counted from 0; -1 is the last.", metavar="LAYER", complete=("auto",),
        brief="Layer, counted from 0; -1 is the last."),
    replace(HEAD, help=f"Head, in the same form. {_AUTO_HEAD}", metavar="HEAD", complete=("auto",),
        brief="Head, in the same form."),
    number("top", COMPUTE, 1, "Keys to show, largest weight first; default: 16 in a terminal, all in json.",
        metavar="K", brief="Keys to show, largest weight first."),
    Option("measure", COMPUTE, "With mixing, explain the matrix of a layer without softmax, also where a layer has "
        "attention beside it.", arguments.explained_measure, "NAME", "weights", complete=("weights", "mixing")),
    SPANS, MASK, WHAT_IF, SCALE, HIDE,
    *_shown("Decimal places in tables; json is exact.", "4"), STRICT,
    *THE_MACHINE,
)
_ONE_NUMBER = "key", "measure!=mixing"
HEADS = (
    replace(TEXTS[0], help="Text to measure on; - reads standard input. Default: what is piped (if it begins within "
        f"{PATIENCE} seconds), or built-in texts; {{key}} and {{measure}} need a text."),
    *TEXTS[1:],
    *_compared(THE_MODEL, "model", "config", "adapter", "tokenizer", "qkv"),
    replace(QUERY, needs=_ONE_NUMBER),
    replace(KEY, excludes=("measure!=weight|value|projected|mixing",), why="a statistic is of whole rows"),
    replace(WORDS, group=COMPUTE,
        help="Take the whole words that {query} and {key} name a piece of: weights are summed over a "
        "word's keys and averaged over its queries.", brief="", needs=("key", "query")),
    SPANS, MASK, WHAT_IF, replace(HIDE, needs=_ONE_NUMBER),
    Option("against", MEASURE, "Keys to compare {key} with, in the same form: shows the weight on {key} minus the "
        "weight on these keys, and lists heads by the size of this difference.",
        partial(_positions, arg("against")), "COLUMNS", needs=("key",),
        brief="Keys to compare {key} with."),
    Option("role", MEASURE,
        "Show only these roles, separated by commas, with their values for every head; see Roles below.",
        arguments.roles, "ROLES", complete="roles", brief="Only these roles, such as induction,previous.",
        excludes=_ONE_NUMBER, why="one number for every head takes the place of roles"),
    Option("measure", MEASURE, "One number for every head instead of roles: weight, value or projected (of {key}, "
        "averaged over {query}; default with {key}: weight), or a statistic of the average row: {row_statistics}, or, "
        "where layers have them, sink, unselected or gate. With mixing, show the roles of layers without softmax, also "
        "where a layer has attention beside it.",
        arguments.measure, "NAME", complete="measures",
        brief="One number for every head, such as entropy.", needs={"weight|value|projected": ("key",)}),
    number("draws", MEASURE, arguments.DRAWS[0], "Number of random sequences of each kind; default: 8.",
        arguments.DRAWS[1], excludes=_ONE_NUMBER, why="one number for every head uses no random tokens"),
    Option("needle", MEASURE, "Hide this sentence in long texts, ask for its answer at the end, and show how much the "
        "retrieval heads read of it by length and depth, and the answer's probability; such as 'The key of the vault "
        "is 71432.'",
        partial(arguments.text, arg("needle")), "TEXT", brief="Hide a sentence in long texts, and ask for it.",
        excludes=("text", "file", "chat", "pair", "context", "query", "key", "against", "spans", "hide",
            "role", "measure", "top", "words")),
    Option("answer", MEASURE, "Part of the {needle} that is its answer; default: its last word.",
        partial(arguments.text, arg("answer")), "TEXT", needs=("needle",)),
    Option("filler", MEASURE, "Text around the {needle}, repeated if it is short; default: built-in texts.", Path,
        "FILE", complete="files", needs=("needle",)),
    Option("lengths", MEASURE, "Tokens of the texts around the {needle}, such as 512,1024,…,4096; default: 512,1024.",
        partial(arguments.series, arg("lengths"), 8, 1 << 24, integers=True), "LENGTHS", needs=("needle",)),
    Option("depths", MEASURE, "Shares of the text before the {needle}; default: 0,0.1,…,1.",
        partial(arguments.series, arg("depths"), 0, 1, integers=False), "DEPTHS", needs=("needle",)),
    number("seed", MEASURE, 0, "Seed of the random tokens; default: 0.",
        excludes=_ONE_NUMBER, why="one number for every head uses no random tokens"),
    number("top", SHOW, 1, "Heads to list for each role; default: as many as fit on a line, or 10 for a single role.",
        metavar="K", brief="Heads to list for each role."),
    choice("sort", SHOW, Literal["value", "layer"], "Order of the listed heads.", default="value"),
    *_shown("Decimal places of {measure}; files other than pictures and .txt are exact.", "2"), STRICT,
    *_compared(THE_MACHINE, "dtype", "engine"),
)
ABLATE = (
    *_with_brief(TEXTS, file="", chat=""), *COMPLETE_MODEL, replace(CUTS, overrides=("top",), excludes=("each",)),
    choice("each", CUT, Each, "Cut each head, all heads of each layer, each edge, or the answer (or {query}) off from "
        "each span of the text, on its own, and rank them by effect.", brief="Cut each on its own, and rank them by effect.",
        needs={"edge": ("layer!=all", "head!=all", "query"), "span": ("spans", "chat")}),
    replace(LAYER, group=CUT,
        help=f"With {{each}}, the layers to cut: all, {_NUMBERS}", default="all", complete=("all",),
        needs=("each",),
        brief="With {each}, the layers: all, 3, -1, or 0,2,5-7."),
    replace(HEAD, group=CUT,
        help="With {each} head, edge or span, the heads to cut: all, numbers in the same form, or L2H3.",
        default="all", complete=("all",), brief="With {each}, the heads, or L2H3.",
        needs=("each=head|edge|span",)),
    replace(QUERY, group=CUT,
        help="With {each} edge, the queries of the edges to cut; with {each} span, the tokens to cut off "
        "from spans instead of the answer: positions (3, -1, or 3:8, which excludes 8), words or phrases, separated by "
        "commas.", metavar="TOKENS", brief="With {each} edge, the queries of the edges.", needs=("each=edge|span",)),
    replace(KEY, group=CUT, help="With {each} edge, the keys of the edges to cut, in the same form.", metavar="TOKENS",
        brief="With {each} edge, the keys of the edges.", needs=("each=edge",)),
    replace(WORDS, group=CUT,
        help="Cut edges between whole words: with {each} edge, all edges from the pieces of one word to "
        "those of another together; in {cuts}, {query} and {key}, the whole word that a piece belongs to.", brief=""),
    choice("replacement", CUT, Replacement, "What replaces the output of a cut head: zero, its mean over the text's "
        "tokens, or resample: its output at the same positions of other texts, averaged over draws of these. With "
        "resample, edges are replaced, too.", default="zero",
        aliases=("--with",), brief="Replace a head's output by zero or its mean.",
        excludes=("each=span",), why="spans are cut by their edges"),
    Option("patch_from", CUT, "Patch instead of cutting: replace outputs of heads, and what edges read, by those of "
        "this text at the same positions. Usually TEXT is the corrupted text and this the clean one; both have equally "
        "many tokens.", metavar="OTHER", aliases=("--from",),
        excludes=("replacement", "each=span"), why="what another text gives is the replacement",
        brief="Patch with what heads give in another text."),
    Option("others", CUT,
        "Draw from the texts of this file, one per line; default: built-in texts.", Path,
        "FILE", complete="files", aliases=("--from-file",), needs=("replacement=resample",)),
    number("draws", CUT, 1, "Number of draws; default: 4.", arguments.DRAWS[1],
        needs=("replacement=resample",)),
    number("seed", CUT, 0, "Seed of the draws; default: 0.",
        needs=("replacement=resample",)),
    replace(TARGET, group=CUT,
        help="Token whose logit is compared, such as ' Mary' with its leading space; given twice, the "
        "difference between the two logits. {each} then ranks by the size of its change.",
        brief="Token whose logit is compared.", excludes=("each=span",), why="spans are ranked by the answer's logits"),
    Option("reference", CUT, "Average over the tokens of this text instead. Tokens that "
        "{hide} names are hidden in it as well.", metavar="TEXT", needs=("replacement=mean",)),
    Option("at", CUT, "Tokens at which predictions and hidden states are compared, as for {query} (0: is all); "
        "default: the last token, or every [MASK] for a masked language model.",
        partial(_positions, arg("at")), "TOKENS",
        brief="Where predictions are compared; default: last."),
    Option("answer", CUT, "The answer, which the text is continued by; begin it with a space if it "
        "needs one. Default: the last turn of a chat, or what the model generates.",
        partial(arguments.text, arg("answer")),
        "TEXT", needs=("each=span",), excludes=("generate",), instead=arg("target", placeholder="TOKEN")),
    number("generate", CUT, 0, "Tokens of an answer that the model generates; default: 8.",
        arguments.GENERATED, needs=("each=span",)),
    SPANS, MASK, HIDE,
    number("top", SHOW, 1, "Number of entries to list; default: 10.", metavar="K", needs=("each",),
        brief="With {each}, number of entries to list."),
    *_shown("Decimal places in tables; files other than pictures and .txt are exact.", "3",
        output="Write to a file; the extension sets the format: {endings}, with {each} also {table_endings}."), STRICT,
    *THE_MACHINE,
)
EXPLORE = (
    replace(TEXTS[0], help="Text to explore; or what was saved: a dump ({dumps} or a folder), or a report or "
        "comparison (.json, .npz, .safetensors). - reads a text from standard input.", metavar="TEXT|FILE",
        complete="files", brief="Text to explore, or a saved dump or report."),
    *TEXTS[1:],
    *THE_MODEL,
    replace(LAYER, help="Layer to begin at; -1 is the last.", metavar="LAYER", complete=("auto",),
        brief="Layer to begin at; -1 is the last."),
    replace(HEAD, help="Head to begin at, in the same form; auto picks the one with the most content weight.",
        metavar="HEAD", complete=("auto",), brief="Head to begin at."),
    replace(QUERY, help="Row to begin at: a position such as 3, or a word.", metavar="TOKEN",
        brief="Row to begin at: a word, or a position."),
    replace(KEY, help="Column to begin at.", metavar="TOKEN", brief="Column to begin at."),
    MASK, WHAT_IF, HIDE,
    replace(SPANS, help=f"Begin with the weights between spans of the text; {SPANS.help[0].lower()}{SPANS.help[1:]}"),
    Option("words", SHOW, "Begin with the weights between words, as in run; the key u changes back to tokens.",
        brief="Begin with the weights between words."),
    replace(RAN_WITHOUT, help="Begin without a head or an edge, as the key x does; see ablate. Repeatable."),
    Option("keys", SHOW, "TOML file that binds other keys to actions; default: keys.toml in the folder of your "
        "settings files, such as ~/.config/attnscope.", Path, "FILE", complete="files"),
    choice("color", SHOW, Literal["auto", "always", "never"], "When to use colour.", default="auto"),
    replace(QUIET, help="On leaving, do not print the command that shows the same place."),
    *THE_MACHINE,
)
LEARN = (
    Option("lesson", OTHER, f"Lesson: {', '.join(LESSON_NAMES)}; without it, they are listed.", metavar="LESSON",
        argument=True, complete=LESSON_NAMES, brief=f"{', '.join(LESSON_NAMES[:4])} …"),
    replace(TEXTS[0], group=OTHER, help="Your own sentence; default: The bank by the river. - reads standard input.",
        brief="Your own sentence; default: the sample's."),
    replace(LAYER, help="Layer of the head, counted from 0; -1 is the last.", metavar="LAYER", complete=("auto",),
        brief="Layer of the head."),
    replace(HEAD, help=f"Head, in the same form. {_AUTO_HEAD}", metavar="HEAD", complete=("auto",),
        brief="Head; auto picks the most content weight."),
    replace(QUERY, help="Token whose row the lesson is about: a position such as 3, or a word; default: the last word.",
        metavar="TOKEN", brief="Token whose row it is about."),
    MASK,
    Option("temperature", COMPUTE, "Divide the scaled scores by this number before the softmax; default: 1.",
        partial(arguments.real, arg("temperature"), what="a number above 0", positive=True), "T",
        brief="Divide the scores by T; below 1 sharpens the softmax."),
    Option("plain", SHOW, "Print the whole lesson, with the answers at its end, also in a terminal.",
        brief="Print the whole lesson, with answers at its end."),
    *_shown("Decimal places; json is exact.", "2"),
    *(option for option in COMPLETE_MODEL),
    *THE_MACHINE,
)
CHECK = (
    replace(TEXTS[0], group=OTHER,
        help="Text to run the checks on; - reads standard input. Default: built-in texts of several kinds.",
        brief="Text to run on; default: built-in ones."),
    *(replace(option, brief="") for option in TEXTS if option.name in ("image", "audio", "context")),
    Option("tolerance", SHOW, "Largest allowed difference; default: what rounding explains in the model's {dtype}.",
        partial(arguments.tolerance, arg("tolerance")), "X", brief="Largest allowed difference."),
    DATA_FORMAT, replace(JSON, brief=JSON.help), replace(FILE_OUT, brief="Write to a file: .json or .txt."),
    *_OUTPUT_OF_CHECKS,
    replace(VERBOSE, help="Show the model's full path, its device, all notes, and the differences of each layer."),
    *_with_brief(COMPLETE_MODEL, config="Stack described in TOML, or a bundled one."),
    *_with_brief(THE_MACHINE, dtype="Data type of the model.", engine="Run the model in transformers."),
)
_OF_MACHINE = {option.name: option for option in THE_MACHINE}
DOCTOR = (
    replace(TEXTS[1], group=OTHER, help="Texts to examine the model with, one per line; default: built-in texts.",
        brief="Texts to examine the model with."),
    Option("batch", OTHER, "Batch to examine, as your program makes it: a JSON object with input_ids and all else that "
        "the model is called with (attention_mask, position_ids, labels …), each a list of rows; documents, the number "
        "of each token's document, and prefix say what the batch does not. - reads standard input.", metavar="FILE|-",
        complete="files", brief="Batch of your program to examine (JSON)."),
    Option("attn", OTHER, "Implementations of attention to examine, by their names in transformers, separated by "
        "commas: eager, sdpa, flex_attention, flash_attention_2 …; default: eager,sdpa.",
        partial(arguments.names, arg("attn")),
        "NAMES", complete=("eager", "sdpa", "flex_attention", "flash_attention_2"),
        brief="Backends of attention, such as eager,sdpa."),
    number("longest_probe", OTHER, 16,
        "Tokens of the longest text that tests windows; for longer windows the verdict is cannot tell. Default: 512."),
    DATA_FORMAT, replace(JSON, brief=JSON.help),
    replace(FILE_OUT, help="Write to a file; the extension sets the format: {endings} (.xml is JUnit).",
        brief="Write to a file: .json, .txt, or .xml (JUnit)."),
    *_OUTPUT_OF_CHECKS,
    replace(VERBOSE, help="Show every measurement, and why each check matters.",
        brief="Show every measurement, and why it matters."),
    *(option for option in COMPLETE_MODEL if option.name != "config"),
    replace(_OF_MACHINE["dtype"], default=None,
        help="Data type of the model; default: the one that its config.json names.", brief="Data type of the model."),
    _OF_MACHINE["device"],
    _OF_MACHINE["threads"],
    _OF_MACHINE["max_memory"],
)
INFO = (
    Option("named", MODEL, "Model to describe: the same as --model.", metavar="MODEL", complete="samples", argument=True,
        excludes=("model", "config"), why="it is the model", brief="The same as --model."),
    *_with_brief(COMPLETE_MODEL, config="Stack described in TOML, or a bundled one."),
    DATA_FORMAT, replace(JSON, brief=JSON.help),
    Option("cost", SHOW, "Show FLOPs and bytes of attention as the text grows.",
        brief="FLOPs and bytes of attention as the text grows."),
    Option("list", SHOW, "List bundled samples, bundled configs and supported families instead.",
        excludes=(*(option.name for option in COMPLETE_MODEL), "named", "cost"), why="no model is opened",
        brief="List bundled samples, configs and families."),
    Option("settings_listed", SHOW, "List the options that attnscope.toml, pyproject.toml or your own settings set, "
        "and where.", flag="--settings", brief="List settings, and where each comes from."),
    Option("quiet", SHOW, "Print data only: no notes, and no explanation of the columns."),
)
_TABLES = tuple(part.table for part in RECORD_PARTS if part.table)
_CONVERTED = (*_TABLES, *(part.means for part in RECORD_PARTS if part.means))
CONVERT = (
    Option("source", OTHER,
        "Finished dump ({dumps} or a folder), or report of run (.json).", Path, "IN",
        complete="files", argument=True, required=True),
    Option("out", OTHER,
        "{or_tables} for a table; .html for a page; {dumps}, or a name without extension for a folder.", Path, "OUT",
        complete="files", argument=True, required=True),
    replace(choice("table", OTHER, Literal[tuple(table.name for table in _CONVERTED)], "Table to write: "
        f"{', '.join(f'{table.name} ({table.rows})' for table in _CONVERTED)}; default: the first of these that IN "
        "has.", needs=("out=.csv|.parquet",)), metavar="TABLE"),
    Option("force", OTHER, "Overwrite OUT if it exists."),
    Option("quiet", OTHER, "Hide notes on standard error."),
)
MERGE = (
    Option("parts", OTHER, "Parts that batch wrote with --shard 1/N to N/N, in any order.", metavar="PART",
        complete="files", argument=True, several="yes"),
    Option("output", OTHER, "The whole dump: {resumed}, or a name without extension if the parts are folders.", Path,
        "OUT", short="-o", complete="files"),
    Option("status", OTHER, "Instead of joining the parts, print in one line how far they are."),
    Option("force", OTHER, "Overwrite OUT if it exists."),
    Option("quiet", OTHER, "Hide progress and notes on standard error."),
)
VERIFY = (
    Option("dump", OTHER, "Finished dump: {dumps}, or a folder.", Path, "DUMP", complete="files", argument=True,
        required=True),
    Option("input", OTHER, "The texts that the dump was made of; default: the file that its header names.",
        metavar="FILE", complete="files"),
    Option("quiet", OTHER, "Hide progress and notes on standard error."),
)
IMPORT = (
    Option("source", OTHER, "Folder with pickled weights: pytorch_model.bin, as one file or in shards.", Path, "SRC",
        complete="files", argument=True, required=True),
    Option("target", OTHER, "New folder for model.safetensors and copies of config and tokenizer files.", Path, "DST",
        argument=True, required=True),
    Option("max_memory", OTHER,
        "Limit the memory of the process that reads the pickles, such as 8G; default: half of the free memory.",
        arguments.size, "SIZE"),
    Option("quiet", OTHER, "Hide notes on standard error."),
)
PULL = (
    Option("name", OTHER, "Repository on the Hugging Face Hub.", metavar="ORG/NAME", argument=True, required=True),
    Option("quiet", OTHER, "Hide progress and notes on standard error."),
)
COMMON = (
    Option("profile", OTHER, "Take defaults from [profile.NAME] of attnscope.toml, too.", metavar="NAME"),
    Option("no_settings", OTHER, "Leave out attnscope.toml, pyproject.toml and your own settings."),
    choice("errors", OTHER, Literal["text", "json"], "Write errors and notes as lines of text, or as lines of JSON.",
        default="text", variable="ATTNSCOPE_ERRORS"),
)  # options of every command
HELP = (
    Option("command", OTHER, "Command, or a topic of several commands.", metavar="COMMAND", argument=True,
        complete="help_words"),
    Option("topic", OTHER, "Topic of the command, such as masks; its help lists them.", metavar="TOPIC", argument=True,
        complete="topics"),
    Option("json", OTHER, "Print all commands, options, types, defaults, exit codes and schemas as JSON.",
        excludes=("command", "topic", "skill"), why="all commands are printed"),
    Option("skill", OTHER, "Print a SKILL.md, which tells a coding agent how to use attnscope.",
        excludes=("command", "topic"), why="all commands are printed"),
)
_OF_SPANS = tuple(name for name in EXACT_PARTS if PARTS[name].of_spans)
BATCH = (
    Option("texts", INPUT, "Texts: .txt (one per line), .jsonl, .csv, .tsv, .parquet, .arrow, or a folder of .arrow "
        "or .parquet files (datasets.save_to_disk, Spark); files may be compressed as .gz or .zst, and be at s3://, "
        "gs:// or hf://. Without it, or with -, standard input is read.", metavar="FILE", argument=True,
        brief="Texts: .txt, .jsonl, .csv, .parquet …, or -."),
    Option("chat", INPUT, "Chats to render with the model's own chat template, in place of FILE: a .jsonl file with a "
        "chat on each line (its messages, or an object with messages); - reads standard input.", metavar="FILE|-",
        complete="files", excludes=("texts", "input_format!=jsonl"), why="chats are read from .jsonl"),
    choice("input_format", INPUT, Literal["txt", "jsonl", "csv", "tsv", "parquet", "arrow"],
        "Format of the input, if the file's extension does not show it.", flag="--from",
        hint=f"a text to patch from is given with {arg('patch_from', placeholder='OTHER')}"),
    Option("column", INPUT,
        "Column or JSON member that holds the text; a JSON object without it may have messages of a chat.",
        partial(arguments.text, arg("column")), "NAME", "text", brief="Column or member that holds the text."),
    number("skip", INPUT, 0, "Skip the first N texts.", default="0"),
    number("limit", INPUT, 1, "Stop after N texts.", brief="Stop after N texts."),
    Option("shard", INPUT, "Process every N-th block of texts, starting with the I-th; attnscope merge joins the "
        "parts. slurm stands for the task of a job array.", arguments.shard, "I/N|slurm", "1/1",
        brief="Compute the I-th of N parts; merge joins them."),
    *(replace(QKV, excludes=(*QKV.excludes, "texts", "input_format")) if option is QKV else option for option in THE_MODEL),
    replace(LAYER, help=f"Layers, counted from 0: all, mean, {_NUMBERS}", default="all", complete=("all", "mean"),
        brief="Layers: all, mean, 3, -1, or 0,2,5-7."),
    replace(HEAD, help="Heads, in the same form.", default="all", complete=("all", "mean"),
        brief="Heads, in the same form."),
    replace(QUERY, brief=""), replace(KEY, brief="", needs=("stages!=none",)), *SELECTION[4:7],
    replace(STAGE, help=f"Whole matrices to keep (large), separated by commas: {', '.join(STAGES)}, or none.",
        default="none", brief="Whole matrices to keep, such as weights (large)."),
    *(replace(option, needs=("keep=brief|top|all",)) for option in _with_brief(SELECTION[8:], by="")),
    Option("keep", COMPUTE, f"Findings to keep, separated by commas: {BRIEF} (contributors and the statistics "
        f"{', '.join(BRIEF_STATISTICS)}, to {BRIEF_DIGITS} decimals), or exact ones: "
        f"{', '.join(f'{name} ({PARTS[name].phrase})' for name in ALL_PARTS)}, {ALL} (every one of these), or "
        f"{', '.join(f'{name} ({PARTS[name].phrase})' for name in EXACT_PARTS if name not in ALL_PARTS)}.",
        partial(arguments.some_of, arg("keep"), "part", KEPT), "WHAT", BRIEF, complete=KEPT,
        brief="Findings: brief (per token), heads (per head), all, …"),
    replace(TARGET, group=COMPUTE,
        help="With {keep} effects, the token whose logit is compared, such as ' Mary'; given twice, "
        "the difference between the two logits. {{NAME}}, in braces, is the member NAME of each record.", brief="",
        excludes=(), needs=("keep=effects",)),
    Option("patch_from", COMPUTE, "With {keep} effects, patch heads with what they give in this text, instead of "
        "cutting them ({input_format} is the format of the input); both texts have equally many tokens. {{NAME}}, in braces, "
        "is the member NAME of each record.", metavar="OTHER", needs=("keep=effects",)),
    replace(SPANS, needs=(f"keep={'|'.join(_OF_SPANS)}", "query", "key", "hide")),
    replace(WORDS, help="Keep the weights between words: short for {spans} whole-words {keep} spans.", brief="",
        excludes=("spans",)),
    replace(POOLED, help="Rows and columns of a pooled map.", default="16", needs=("keep=pooled|all",)),
    Option("output", OUTPUT, "Output: {resumed}, or a name without extension for a folder of .safetensors shards (all "
        "resumable); {whole} (one document); - writes .jsonl to standard output. An s3://, gs:// or hf:// URL is "
        "written as whole objects.", Path, "OUT", short="-o", complete="files", required=True,
        brief="Output: .jsonl, a folder … (resumable)."),
    Option("table", OUTPUT, "Tables of a .parquet folder, separated by commas: "
        f"{', '.join(table.name for table in _TABLES)}; several become subfolders. Default: the first of these that is "
        "kept.", partial(arguments.some_of, arg("table"), "table", tuple(table.name for table in _TABLES)), "TABLES",
        complete=tuple(table.name for table in _TABLES)),
    Option("strict", OUTPUT, "Stop at the first failed record."),
    Option("max_minutes", OUTPUT,
        "Stop after this many minutes, with everything saved and exit code 1; the same command resumes.",
        partial(arguments.real, arg("max_minutes"), what="a number of minutes above 0", positive=True), "MINUTES",
        excludes=("output=.json",), why="a document is written as a whole"),
    Option("workers", OUTPUT, "Number of processes that compute, on one thread each unless {threads} is given; they "
        "share the weights; 0 for a single process with threads. auto takes one for each CPU, or for each GPU, if the "
        "run is long enough and keeps no matrices. Default: auto on Linux without a GPU and {threads}, else 0.",
        arguments.workers, "N|auto", brief="Processes that compute and share the weights."),
    Option("ray", OUTPUT, "Spread the shards over a cluster of Ray (install attnscope[ray]), and merge them: auto, "
        "host:port, or without an address one that is started here.", metavar="[ADDRESS]"),
    number("actors", OUTPUT, 1, "Number of actors; default: as many as the cluster has room for.", needs=("ray",)),
    Option("actor_cpus", OUTPUT, "CPUs of an actor.", partial(arguments.real, arg("actor_cpus")), "N", "1",
        needs=("ray",)),
    Option("actor_gpus", OUTPUT, "GPUs of an actor.", partial(arguments.real, arg("actor_gpus")), "N", "0",
        needs=("ray",)),
    Option("actor_resources", OUTPUT, "Other resources of an actor.", arguments.resources, "NAME=N,…",
        needs=("ray",)),
    number("sbatch", OUTPUT, 1, "Instead of computing, print a script for SLURM's sbatch: a job array of N tasks, each "
        "of which writes one part.", arguments.TASKS),
    Option("status", OUTPUT, "Instead of computing, print in one line how far {output} is.",
        brief="Print how far the output is."),
    Option("force", OUTPUT, "Start over instead of resuming; the old dump is kept until new records are safe."),
    Option("quiet", OUTPUT, "Hide progress and notes on standard error."),
    *THE_MACHINE,
)
# fmt: on
COMMANDS: Mapping[str, tuple[Option, ...]] = {
    "run": RUN,
    "compare": COMPARE,
    "explain": EXPLAIN,
    "heads": HEADS,
    "ablate": ABLATE,
    "explore": EXPLORE,
    "batch": BATCH,
    "merge": MERGE,
    "verify": VERIFY,
    "convert": CONVERT,
    "import": IMPORT,
    "learn": LEARN,
    "check": CHECK,
    "doctor": DOCTOR,
    "info": INFO,
    "pull": PULL,
    "help": HELP,
}
_DECLARED = {
    option.name: option for options in reversed(list(COMMANDS.values())) for option in options
}


def on_command_line(option_name: OptionName) -> str:
    """Spell an option as typed; see `AttnscopeError.line`."""
    option = _DECLARED.get(option_name.name)
    value = option_name.value
    if option_name.typed:
        return option_name.typed
    if option is None:
        flag = f"--{option_name.name.replace('_', '-')}"
    else:
        flag = option.spelled
    if option_name.placeholder:
        is_argument = option is not None and option.argument
        if is_argument:
            return option_name.placeholder.replace("FILE", flag)
        return f"{flag} {option_name.placeholder}"
    if value is None or isinstance(value, bool):
        if option is not None and option.off and value is False:
            return option.off
        return flag
    return f"{flag} {','.join(value) if isinstance(value, tuple) else shlex.quote(str(value))}"
