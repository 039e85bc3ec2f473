"""The options that commands share, each declared once: its names, its meaning, how its value is read and completed.

A command takes the dataclasses below as parameters; `option_groups.expand_groups` turns their fields into options.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from attnscope.base.errors import UsageError
from attnscope.cli import completion
from attnscope.request import arguments
from attnscope.request.arguments import Dtype, EngineWord, PartWord
from attnscope.studies.formats import Command, Look, endings

TEXT, _MODEL, _MACHINE = "Text", "Model", "Machine"
SHOW = "What to show"

Format = Literal["table", "heat", "json"]
TableOrJson = Literal["table", "json"]
Color = Literal["auto", "always", "never"]


def option(*names: str, group: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    """Declare a Typer option whose help text shows its default, if it has one."""
    return Option(*names, help=help, metavar=metavar, rich_help_panel=group, **more)


def choice(name: str, words: Any, *, group: str, help: str) -> Any:
    """Return an option that takes one of the words of a Literal type."""
    metavar = "|".join(words.__args__)
    return option(name, group=group, help=help, metavar=metavar, parser=arguments.one_of(name, words))


DATA_ONLY = "Print data only: no header, hints or notes, and no progress on standard error."


def format_option(words: Any, help: str = "Output format: table (default) or json (exact).") -> Any:
    """Declare `--format`."""
    return choice("--format", words, group=SHOW, help=help)


def output_option(help: str, *, group: str = SHOW, metavar: str = "FILE") -> Any:
    """Declare `--output`."""
    return option("--output", "-o", group=group, metavar=metavar, autocompletion=completion.files, help=help)


def exported(command: Command) -> str:
    """Describe `--output` of a command."""
    return f"Write to a file; the extension sets the format: {' '.join(endings(command))}."


def precision_option(help: str) -> Any:
    """Declare `--precision`."""
    return option("--precision", group=SHOW, metavar="DIGITS", parser=arguments.number("--precision", 0, 9), help=help)


def quiet_option(help: str = "Hide progress and notes on standard error.", *, group: str = SHOW) -> Any:
    """Declare `--quiet`."""
    return option("--quiet", group=group, help=help)


def verbose_option(help: str) -> Any:
    """Declare `--verbose`."""
    return option("--verbose", group=SHOW, help=help)


def tolerance_option(help: str, name: str = "--tolerance", metavar: str = "X") -> Any:
    """Declare `--tolerance`, or a bound like it."""
    return option(name, group=SHOW, metavar=metavar, parser=arguments.tolerance(name), help=help)


def context_option() -> Any:
    """Declare `--context`."""
    return option(
        "--context", group=TEXT, metavar="TEXT", help="Text that provides keys and values in cross-attention."
    )


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The texts to look at.

    Attributes:
        text: The text, or `-` for standard input.
        file: A file with one text per line.
        pair: An encoder's second segment.
        context: Where keys and values come from under cross-attention.
    """

    text: Annotated[
        str | None,
        Argument(
            metavar="TEXT",
            help="Text to inspect; without it, or with -, standard input is read as one text.",
            rich_help_panel=TEXT,
        ),
    ] = None
    file: Annotated[
        Path | None,
        option(
            "--file",
            group=TEXT,
            metavar="PATH",
            autocompletion=completion.files,
            help="Read one text per line from a file instead.",
        ),
    ] = None
    pair: Annotated[
        str | None,
        option("--pair", group=TEXT, metavar="TEXT", help="Second segment, for encoders such as BERT."),
    ] = None
    context: Annotated[str | None, context_option()] = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to run, or to describe.

    Attributes:
        model: HF-layout folder, repository in the Hugging Face cache, or name of a shipped sample.
        adapter: Folder of a LoRA adapter.
        config: TOML file or name of a shipped config.
        tokenizer: A tokenizer that replaces the model's own.
        ignore_key: Keys of config.json to ignore.
        trust_config: Read a config.json that names model code of its own.
    """

    model: Annotated[
        str | None,
        option(
            "--model",
            "-m",
            group=_MODEL,
            metavar="PATH|NAME",
            envvar="ATTNSCOPE_MODEL",
            autocompletion=completion.samples,
            help="Checkpoint folder (config.json, tokenizer.json, *.safetensors), GGUF file, repository in the Hugging "
            "Face cache (org/name), or name of a bundled sample; default: the bundled sample.",
        ),
    ] = None
    adapter: Annotated[
        str | None,
        option(
            "--adapter",
            group=_MODEL,
            metavar="PATH",
            autocompletion=completion.files,
            help="LoRA adapter to add to the weights: a folder with adapter_config.json and adapter_model.safetensors; "
            "none adds no adapter.",
        ),
    ] = None
    config: Annotated[
        str | None,
        option(
            "--config",
            group=_MODEL,
            metavar="FILE|NAME",
            autocompletion=completion.configs,
            help="Stack described in TOML, or name of a bundled config. Weights are random unless the stack names a "
            "weights file.",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        option(
            "--tokenizer",
            group=_MODEL,
            metavar="PATH",
            autocompletion=completion.files,
            help="Use this tokenizer instead of the model's own: a tokenizer.json, vocab.txt, vocab.json or "
            "tokenizer.model, or a folder that has one.",
        ),
    ] = None

    ignore_key: Annotated[
        list[str] | None,
        option(
            "--ignore-key",
            group=_MODEL,
            metavar="NAME",
            help="Ignore a key of config.json that would be refused; repeatable. Recorded in the output, and noted on "
            "every screen.",
        ),
    ] = None
    trust_config: Annotated[
        bool,
        option(
            "--trust-config",
            group=_MODEL,
            help="Accept a config.json that refers to its own model code. The code is not run, so the real model may "
            "differ from what is shown.",
        ),
    ] = False

    def chosen(self) -> dict[str, Any]:
        """Return fields of a RunConfig: of `model` and `config` one is None; `--config` overrides the environment.

        Raises:
            UsageError: Both were typed, or an adapter beside a config.
        """
        adapter = None if self.adapter == "none" else self.adapter
        more = {
            "tokenizer": self.tokenizer,
            "ignore_key": tuple(self.ignore_key or ()),
            "trust_config": self.trust_config,
        }
        if self.config is None:
            return {"model": self.model, "config": None, "adapter": adapter, **more}
        if adapter is not None:
            raise UsageError("--adapter and --config cannot be used together", hint="an adapter belongs to a --model")
        if self.model is not None and self.model != os.environ.get("ATTNSCOPE_MODEL"):
            raise UsageError("--model and --config cannot be used together", hint="pass one of them")
        return {"model": None, "config": self.config, "adapter": None, **more}


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """How the model runs.

    Attributes:
        device: Where.
        dtype: In which type.
        truncate: Cut texts that are too long for the model.
        max_memory: Bytes that the run may take.
        threads: CPU threads to compute with.
        engine: Who computes queries, keys and values.
        part: Which attention of a model with two halves.
        hash_weights: Record a hash over all weights in the report.
    """

    device: Annotated[
        str,
        option(
            "--device",
            group=_MACHINE,
            metavar="auto|cpu|cuda[:N]|mps",
            parser=arguments.device,
            autocompletion=completion.words("auto", "cpu", "cuda", "mps"),
            help="Device; auto uses CUDA for all but small work.",
        ),
    ] = "auto"
    dtype: Annotated[
        Dtype,
        choice("--dtype", Dtype, group=_MACHINE, help="Data type of the model; scores and softmax are always float32."),
    ] = "float32"
    truncate: Annotated[
        bool,
        option("--truncate", group=_MACHINE, help="Truncate texts that exceed the model's limit, with a note."),
    ] = False
    max_memory: Annotated[
        int | None,
        option(
            "--max-memory",
            group=_MACHINE,
            metavar="SIZE",
            parser=arguments.size,
            help="Limit memory, such as 800M or 1.5G; default: half of the free memory.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        option(
            "--threads",
            group=_MACHINE,
            metavar="N",
            parser=arguments.number("--threads", 1, arguments.THREADS),
            help="Number of CPU threads; default: OMP_NUM_THREADS, or the CPUs available to this process.",
        ),
    ] = None
    engine: Annotated[
        EngineWord,
        choice(
            "--engine",
            EngineWord,
            group=_MACHINE,
            help="Run the model with attnscope's own code, or with transformers (install attnscope[transformers]), "
            "which supports nearly every architecture.",
        ),
    ] = "native"
    part: Annotated[
        PartWord | None,
        choice(
            "--part",
            PartWord,
            group=_MACHINE,
            help="Attention of an encoder-decoder to show, with --engine transformers; for decoder and cross, TEXT is "
            "the decoder's input and --context the encoder's.",
        ),
    ] = None
    hash_weights: Annotated[
        bool,
        option("--hash-weights", group=_MACHINE, help="Record a SHA-256 hash of all weights in the output."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """In which format findings are printed.

    Attributes:
        format: On standard output; None for the default.
        json: Short for the format `json`.
    """

    format: Annotated[TableOrJson | None, format_option(TableOrJson)] = None
    json: Annotated[bool, option("--json", group=SHOW, help="Short for --format json.")] = False

    def __post_init__(self) -> None:
        """Let `json` set the format.

        Raises:
            UsageError: Another format was typed, too.
        """
        if self.json and self.format not in (None, "json"):
            raise UsageError(f"--json and --format {self.format} cannot be used together", hint="remove one of them")
        if self.json:
            object.__setattr__(self, "format", "json")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(FormatOptions):
    """Where the findings go, and how they look.

    Attributes:
        format: See FormatOptions.
        output: A file instead.
        precision: Digits after the point in tables.
        look: Of a picture.
        color: When to colour.
        verbose: Show all that is known about the model, and every matrix and contributor.
        force: Replace an existing file.
        quiet: Print data only.
    """

    format: Annotated[
        Format | None,
        format_option(Format, "Output format: table (default), heat (a heat map), or json (exact)."),
    ] = None  # type: ignore[assignment]  # a heat map, too
    output: Annotated[Path | None, output_option(exported("run"))] = None
    precision: Annotated[int, precision_option("Decimal places in tables; json, .safetensors and .npz are exact.")] = 2
    look: Annotated[
        Look,
        choice("--look", Look, group=SHOW, help="Look of an .svg: a figure on white, or the terminal's tables."),
    ] = "figure"
    color: Annotated[Color, choice("--color", Color, group=SHOW, help="When to use colour.")] = "auto"
    force: Annotated[bool, option("--force", group=SHOW, help="Overwrite the --output file if it exists.")] = False
    quiet: Annotated[bool, quiet_option(DATA_ONLY)] = False
    verbose: Annotated[
        bool,
        verbose_option(
            "In a terminal, show the model's full path, its device and all notes, every matrix of --stage, and small "
            "contributors one by one."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class TableOutputOptions(OutputOptions):
    """Where findings go that are no heat map, and how they look.

    Attributes:
        format: On standard output.
    """

    format: Annotated[TableOrJson | None, format_option(TableOrJson)] = None
