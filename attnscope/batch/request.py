"""What a request for a dump means, for `attnscope batch` and `attnscope.write_dump`: what is refused, and how to write it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.base.files.atomic import check_name
from attnscope.batch.convert import write_document
from attnscope.batch.dump import DumpProgress, write_dump
from attnscope.batch.formats import DUMP_FORMATS, format_of
from attnscope.batch.header import Settings
from attnscope.batch.items import ARRAYS
from attnscope.batch.loading import DumpConfig
from attnscope.batch.ray_shards import RayConfig, write_with_ray
from attnscope.batch.remote import shown, url_of
from attnscope.batch.staging import write_remote_dump
from attnscope.batch.summary import Summary
from attnscope.findings.record_parts import EXACT_PARTS
from attnscope.request.options import ALL, ALL_PARTS, BRIEF, BRIEF_DIGITS, BRIEF_STATISTICS
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import join_label
from attnscope.request.spans import WHOLE_WORDS, SpanRequest, parse_spans

# settings whose options mean something else than their values, or are spelled out
_READ = ("layer", "head", "query", "key", "keep", "spans", "target")


@dataclass(frozen=True)
class DumpRequest:
    """A dump that was asked for."""

    config: DumpConfig
    tables: bool  # whether the output is a folder of tables
    cluster: RayConfig | None  # the cluster of Ray that computes it; None for this machine

    @property
    def has_lines(self) -> bool:
        """Whether the output has a line for each record: a file of lines, or the index of a folder of shards."""
        return not self.tables and self.config.output.suffix != ".json"

    def check_shared(self, who: str, option: str, *, tables: bool) -> None:
        """Refuse an input or output that several machines cannot share.

        Args:
            tables: Whether each of them may write a folder of tables.
        """
        output = self.config.output
        if self.config.input == "-":
            hint = f"pass {arg('texts')} on a disk that all nodes share"
            raise UsageError(f"{who} cannot share standard input", where=arg(option), hint=hint)
        is_resumed = self.has_lines or (tables and self.tables)
        if not is_resumed or str(output) == "-" or url_of(output) is not None:
            hint = "use .jsonl or a folder, on a disk that all nodes share"
            raise UsageError(f"{who} cannot share '{shown(output)}'", where=arg(option), hint=hint)

    def write(self, on_progress: DumpProgress, **options: Any) -> Summary:
        """Write the dump, or resume it.

        Args:
            options: See write_dump; `on_start` and `on_size` are called only for a dump that can be resumed.
        """
        config = self.config
        if self.cluster is not None:
            self.check_shared("actors", "ray", tables=False)
            return write_with_ray(config, self.cluster, on_progress)
        if url_of(config.output) is not None:
            return write_remote_dump(config, on_progress, **options)
        if self.has_lines or self.tables:
            return write_dump(config, on_progress, **options)
        return write_document(config, on_progress, session=options.get("session"))


def dump_request(
    options: Mapping[str, Any],
    run: RunConfig,
    *,
    typed: Collection[str],
    tables: bool,
    configured: Mapping[str, str],
    lines: bytes | None = None,
) -> DumpRequest:
    """Return what a call asks for, or refuse it.

    Args:
        options: Every option of `attnscope batch` by name, with its value or default.
        run: Model, mask and machine.
        typed: Options of this call; others have defaults, or come from settings.
        tables: See is_table_folder.
        configured: See DumpConfig.
        lines: See DumpConfig.
    """
    inputs = [options[name] for name in ("texts", "chat", "qkv")]
    name = next((name for name in inputs if name is not None), None)
    if name is None:
        raise UsageError("no input given", hint=f"pass {arg('texts')}, or - for standard input")
    output: Path = options["output"]
    _check_output(output, options, tables=tables)
    input_format = options["input_format"]
    if options["chat"] is not None:
        input_format = "jsonl"
    if options["qkv"] is not None:
        input_format = ARRAYS
    config = DumpConfig(
        name,
        input_format,
        output,
        _settings(options, typed),
        # the target is that of each text's cuts, and words are spans
        replace(run, pool=None, target=None, words=False),
        force=options["force"],
        strict=options["strict"],
        max_minutes=options["max_minutes"],
        workers=options["workers"],
        configured=configured,
        lines=lines,
    )
    cluster = None
    if options["ray"] is not None:
        cluster = RayConfig(
            options["ray"],
            options["actors"],
            options["actor_cpus"],
            options["actor_gpus"],
            options["actor_resources"],
        )
    return DumpRequest(config, tables, cluster)


def is_table_folder(output: Path, words: Collection[str]) -> bool:
    """Tell whether an output is a folder of tables: `dump.parquet/`, or an existing folder of this name.

    Args:
        words: Words of the call, of which one names the output as it was typed: a Path has no slash at its end.
    """
    return output.suffix == ".parquet" and (
        output.is_dir() or any(word.endswith(".parquet/") for word in words)
    )


def _check_output(output: Path, options: Mapping[str, Any], *, tables: bool) -> None:
    """Refuse an output that no dump can have."""
    if tables:
        return
    if options["table"]:
        hint = f"use {arg('output')} dump.parquet/, or convert the dump later"
        raise UsageError("applies only to a .parquet folder", where=arg("table"), hint=hint)
    check_name(output)
    url = url_of(output)
    if url is not None and output.suffix == ".json":
        raise UsageError(f"'{url}' cannot be a document", where=arg("output"), hint="use .jsonl")
    dump_format = format_of(output)
    if dump_format is not None and dump_format.batch:
        return
    endings = (other.ending for other in DUMP_FORMATS if other.ending and other.batch)
    hint = f"use {', '.join(endings)}, or a name without extension for a folder"
    if dump_format is not None:
        hint = f"use .jsonl, then: attnscope convert dump.jsonl dump{dump_format.ending}"
        if dump_format.ending == ".parquet":
            hint += f"; or {output}/ for a folder of tables"
    compressed = dump_format is not None and not dump_format.table
    what = "could not be resumed" if compressed else "is not a dump format"
    raise UsageError(f"'{output}' {what}", where=arg("output"), hint=hint)


def _settings(options: Mapping[str, Any], typed: Collection[str]) -> Settings:
    layer, head = join_label(options["layer"], options["head"])
    if head.pairs:
        # Refuses them: a record has the same heads of every layer.
        head.numbers(0, "head")
    keep: tuple[str, ...] = options["keep"]
    spans: SpanRequest | None = options["spans"]
    if options["words"]:
        keep = tuple(dict.fromkeys((*(keep if "keep" in typed else ()), "spans")))
        spans = parse_spans(WHOLE_WORDS)
    brief = keep == (BRIEF,)
    if spans is not None and spans.division == "ranges":
        hint = f"give each text a member 'spans', and leave {arg('spans')} out"
        raise UsageError("a file divides one text", where=arg("spans"), hint=hint)
    return Settings(
        layer=str(layer),
        head=str(head),
        keep=(*_kept_parts(keep), *(["stages"] if options["stages"] else [])),
        statistics=BRIEF_STATISTICS if brief else None,
        digits=BRIEF_DIGITS if brief else None,
        query=_spelled(options["query"]),
        key=_spelled(options["key"]),
        spans=_spelled(spans),
        tables=options["table"] or (),
        target=options["target"] or (),
        **{
            name: options[name]
            for name in Settings.__struct_fields__
            if name in options and name not in _READ
        },
    )


def _spelled(value: object | None) -> str | None:
    return None if value is None else str(value)


def _kept_parts(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of records that `--keep` stands for."""
    if words == (BRIEF,):
        return ("top", "rows")
    if BRIEF in words:
        hint = f"remove {BRIEF}, or the others"
        raise UsageError(
            f"{BRIEF} cannot be combined with exact findings", where=arg("keep"), hint=hint
        )
    apart = [word for word in words if word in EXACT_PARTS and word not in ALL_PARTS]
    if ALL in words:
        return (*ALL_PARTS, *apart)
    return (*(word for word in words if word not in apart), *apart)
