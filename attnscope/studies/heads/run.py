"""Measure the roles of every head: from probes and texts to HeadRoles."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.layer_kinds import MIXING, spell_legend
from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.findings.arrays import Array
from attnscope.findings.head_findings import HeadRoles, Probes, RoleValues
from attnscope.findings.head_roles import (
    FEWEST_SPANS,
    HEAD_ROLES,
    OF_PARTS,
    ROLES,
    SOUND,
    HeadRole,
    jackknife,
    main_roles,
)
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.run.pass_plan import batches_by_length, plan_passes
from attnscope.run.session import (
    Session,
    describe_mask_use,
    forward,
    prepare,
    provenance,
)
from attnscope.run.text_plan import TextPlan, check_context, documents_of_mask
from attnscope.studies.heads.probes import RandomProbes, draw_probes, special_frame
from attnscope.studies.heads.texts import TEXTS

if TYPE_CHECKING:
    import torch

    from attnscope.engines.protocol import Engine

_OFFSETS = 514  # that are kept apart of every head, and those that are not


@dataclass(frozen=True)
class SurveyOptions:
    """The roles to measure, and the random probes for them."""

    roles: tuple[str, ...] | None = None  # names of roles; None for all
    draws: int = 8  # number of random sequences of each kind
    seed: int = 0
    # whether layers that have attention and a path without softmax show the latter
    mixing: bool = False


def survey_heads(
    run: RunConfig,
    options: SurveyOptions,
    session: Session | None = None,
) -> HeadRoles:
    """Do what `attnscope heads` does, without printing; a run without texts takes the shipped ones."""
    shipped = not run.texts
    if shipped:
        run = replace(
            run,
            texts=tuple(
                TextInput(text, where=f"built-in text {n}") for n, text in enumerate(TEXTS)
            ),
        )
    session = session or Session(run.texts)
    source, run = session.open(run)
    if SOUND in (options.roles or ()):
        message = "is measured on speech, of which there is none"
        raise UsageError(
            message, where=arg("role", SOUND), hint=f"pass {arg('audio', placeholder='FILE')}"
        )
    _check(run, source)
    heads = shown_heads(source, mixing=options.mixing)
    if heads.shares and not heads.attention:
        _check_roles(options, source)
    texts, warnings = _tokenized(run, source, shipped=shipped)
    notes = list[str]()
    worded = next(
        (tokens for tokens in texts if not all(token.special for token in tokens)), texts[0]
    )
    measured = {
        role.measured for role in HEAD_ROLES if options.roles is None or role.name in options.roles
    }
    draws = options.draws if measured - {"texts", "weights", *OF_PARTS} else 0
    random = draw_probes(source, special_frame(source, worded), draws, options.seed)
    sums, engine, device = _record(run, options, session, source, heads, texts, random, measured)
    if heads.attention and (options.roles is None or "copying" in options.roles):
        from attnscope.studies.heads.measure import copying_scores

        scores: Any = "the model writes no tokens, whose logits a head could raise"
        if source.only_media is None or source.predicts is not None:
            scores = copying_scores(engine)
        if isinstance(scores, str):
            notes.append(f"copying is not measured: {scores}")
        else:
            sums["copying"] = np.full((1, *heads.shape), np.nan)
            sums["copying"][0, :, : scores.shape[1]] = scores
    unasked = [
        role for role in HEAD_ROLES if role.measured not in OF_PARTS or role.needs[0] in sums
    ]
    asked = [role for role in HEAD_ROLES if role.name in (options.roles or ())]
    roles, main = role_values(sums, unasked if options.roles is None else asked, heads)
    probes = _describe(source, options, texts, random, shipped=shipped)
    mask = describe_mask_use(source, run, engine.describe_mask())
    notes += _missing(random, roles, runs=source.runs, reads=source.only_media is None)
    origin = provenance(source, run, device, warnings=warnings)
    return HeadRoles(
        origin, mask, probes, roles, main, notes, shares=heads.shares, channels=heads.channels
    )


@dataclass(frozen=True)
class ShownHeads:
    """The heads whose roles are measured: one path of every layer."""

    n_layers: int
    attention: Mapping[int, int]  # number of heads of layers with attention
    # number of heads of layers without softmax, of which shares of |M| are shown
    shares: dict[int, int]
    # of those whose heads are channels, whose mean is shown as one head, their number
    channels: dict[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and the largest number of heads of one."""
        return self.n_layers, max({**self.attention, **self.shares}.values(), default=0)

    def allows(self, role: HeadRole) -> Array:
        """Tell which heads can have a role, (layers, heads)."""
        allowed = np.zeros(self.shape, dtype=bool)
        for layer, count in {**self.attention, **(self.shares if role.of_shares else {})}.items():
            allowed[layer, :count] = True
        return allowed


def shown_heads(source: ModelSource, *, mixing: bool = False) -> ShownHeads:
    """Return the heads of all layers; of layers with two paths those of attention, unless `mixing`."""
    c = source.config
    if mixing and not source.mixing:
        raise UsageError(
            "no layer of this model has a matrix without softmax", where=arg("measure", MIXING)
        )
    attending = range(c.n_layers) if source.layers is None else source.layers
    unseen = {
        layer: path for layer, path in source.mixing.items() if mixing or layer not in attending
    }
    return ShownHeads(
        n_layers=c.n_layers,
        attention={layer: c.n_heads for layer in attending if layer not in unseen},
        shares={layer: 1 if path.by_channel else path.n_heads for layer, path in unseen.items()},
        channels={layer: path.n_heads for layer, path in unseen.items() if path.by_channel},
    )


def _check_roles(options: SurveyOptions, source: ModelSource) -> None:
    """Refuse named roles that no layer can have."""
    for name in options.roles or ():
        if not ROLES[name].of_shares:
            message = f"layers without softmax have no role '{name}': {spell_legend(source.config.layer_map)}"
            names = [role.name for role in HEAD_ROLES if role.of_shares]
            raise UsageError(
                message, where=arg("role", name), hint=f"use some of {', '.join(names)}"
            )


def _record(
    run: RunConfig,
    options: SurveyOptions,
    session: Session,
    source: ModelSource,
    heads: "ShownHeads",
    texts: list[list[Token]],
    random: RandomProbes,
    measured: Container[str],
) -> "tuple[dict[str, Array], Engine, torch.device]":
    """Run texts and random sequences; return the sums that roles are computed from, and what ran."""
    # probes of one pass have one length
    batches = batches_by_length([len(tokens) for tokens in texts], padded=True)
    random_batches = batches_by_length([len(probe.tokens) for probe in random.probes], padded=False)
    groups = [[texts[n] for n in numbers] for numbers in batches]
    groups += [[random.probes[n].tokens for n in numbers] for numbers in random_batches]
    named = ["texts"] * len(batches) + ["random tokens"] * len(random_batches)
    planned = [
        [
            TextPlan(
                *(tokens, None, None, [], [], None, []),
                documents=documents_of_mask(run, source, tokens, where),
            )
            for tokens in group
        ]
        for where, group in zip(named, groups, strict=True)
    ]
    for group, numbers in zip(planned, batches, strict=False):
        group[:] = [
            dataclass_replace(plan, media=run.texts[n].read)
            for plan, n in zip(group, numbers, strict=True)
        ]
    # a model without attention is planned as if each layer had it
    if heads.attention:
        planned_source = source
    else:
        planned_source = dataclass_replace(source, layers=None)
    plans = plan_passes(run, planned_source, planned, _bytes_kept(heads, groups, len(texts)))
    model, device = session.load(plans[0], len(plans))

    from attnscope.studies.heads.measure import BLOCKS, ProbePass, Sums, TextPass
    from attnscope.studies.heads.pictures import ON_GRIDS, PicturePass
    from attnscope.studies.heads.segments import SegmentPass, divided_texts

    counts = {**heads.attention, **heads.shares}
    sizes = heads.shape
    sums = Sums(sizes, len(texts), options.draws if random.probes else 0, max(map(len, texts)))
    parts = divided_texts(run, options.roles, texts)
    grids = [() if text.read is None else text.read.images for text in run.texts]
    on_grids = ON_GRIDS if "images" in measured and any(grids) else ()
    sums.arrays |= {
        name: np.zeros((min(BLOCKS, len(texts)), *sizes)) for name in (*parts.sums, *on_grids)
    }
    for index, (plan, numbers) in enumerate(zip(plans, [*batches, *random_batches], strict=True)):
        batch, engine = prepare(plan, model, device)
        recorded: list[TextPass | ProbePass | SegmentPass | PicturePass] = []
        if index >= len(batches):
            recorded.append(
                ProbePass(
                    [random.probes[n] for n in numbers], engine, batch.tokens.real.device, counts
                )
            )
        else:
            if "texts" in measured:
                recorded += [TextPass(batch, numbers, engine, counts)]
            if parts.sums:
                recorded += [SegmentPass(batch, numbers, parts, engine)]
            if on_grids:
                recorded += [PicturePass(batch, numbers, grids, engine)]
        recorders = {
            layer: [recorder for part in recorded for recorder in part.recorders.get(layer, ())]
            for layer in counts
        }
        of_attention = {layer: recorders[layer] for layer in heads.attention}
        of_shares = {layer: recorders[layer] for layer in heads.shares}
        step = (f"measuring heads, {index + 1} of {len(plans)}", session.progress)
        forward(plan, batch, engine, of_attention, step, share_recorders=of_shares)
        for part in recorded:
            part.add_to(sums)
    return sums.arrays, engine, device


def _check(run: RunConfig, source: ModelSource) -> None:
    """Refuse models and texts whose heads have no roles."""
    if source.needs_context:
        hint = "use a model without cross-attention"
        if source.part:
            hint = f"use {arg('part', 'encoder')}"
        raise UsageError("roles are defined only for self-attention", where=source.name, hint=hint)
    if source.first_queries:
        hint = f"give queries of every token, or use {arg('measure', 'entropy')}"
        raise UsageError("roles need the queries of all tokens", where=arg("qkv"), hint=hint)
    for text in run.texts:
        check_context(text, source)


def _describe(
    source: ModelSource,
    options: SurveyOptions,
    texts: list[list[Token]],
    random: RandomProbes,
    *,
    shipped: bool,
) -> Probes:
    unknown = getattr(source.tokenizer, "unknown_id", None)
    return Probes(
        seed=options.seed,
        draws=options.draws if random.probes else 0,
        repeated=random.repeated,
        needle=random.needle,
        before=[token.piece for token in random.before],
        after=[token.piece for token in random.after],
        texts=len(texts),
        tokens=sum(map(len, texts)),
        shipped=shipped,
        unknown=sum(token.id == unknown for tokens in texts for token in tokens),
        tripled=random.tripled,
    )


def _tokenized(
    run: RunConfig, source: ModelSource, *, shipped: bool
) -> tuple[list[list[Token]], list[str]]:
    """Return the tokens of every text, and warnings about what was changed."""
    texts = list[list[Token]]()
    warnings = list[str]()
    limit = source.config.max_positions
    truncated = 0
    for text in run.texts:
        if text.read is not None:
            texts.append(list(text.read.tokens))
            continue
        try:
            arguments = (text.text, text.pair, text.where)
            truncate = shipped or run.truncate
            tokens, of_text = tokenize(
                source, *arguments, truncate=truncate, special=text.adds_special
            )
        except AttnscopeError as e:
            if not shipped:
                raise
            hint = "pass a text that the model's tokenizer knows"
            raise AttnscopeError(
                f"the built-in texts do not fit this model ({e.parts.message})", hint=hint
            ) from e
        texts.append(tokens)
        if shipped and of_text and len(tokens) == limit:
            # The last warning says that this text was truncated.
            of_text = of_text[:-1]
            truncated += 1
        warnings += [f"{text.where}: {warning}" for warning in of_text]
    if truncated:
        warnings.append(
            f"{truncated} of {len(texts)} built-in texts are truncated to {limit:,} tokens"
        )
    return texts, warnings


def _bytes_kept(
    shown: ShownHeads, groups: Sequence[Sequence[Sequence[Token]]], n_texts: int
) -> int:
    """Return the bytes of the recorders of all layers, and of their sums over blocks of sequences."""
    heads = shown.n_layers * shown.shape[1]
    longest = max(len(tokens) for group in groups for tokens in group)
    offsets = min(_OFFSETS, 2 * longest)
    largest_group = max(len(group) for group in groups)
    recorded = largest_group * heads * (4 * longest + 8 * (2 * offsets + 20))
    blocks = min(16, n_texts)
    # sums, squares, and what a jackknife makes of them
    return recorded + heads * (4 * blocks + 8) * 8 * offsets


def role_values(
    sums: Mapping[str, np.ndarray], kept_roles: Sequence[HeadRole], heads: ShownHeads | None = None
) -> tuple[list[RoleValues], list[list[str | None]]]:
    """Return the values of some roles from `Sums.arrays`, and the main role of every head.

    Args:
        heads: The heads that can have them; None for all.
    """
    shape = sums["rows"].shape[1:]
    roles = []
    values = {}
    for role in kept_roles:
        if set(role.needs) <= set(sums):
            value, error = jackknife(sums, role)
        else:
            value = error = np.full(shape, np.nan)
        if heads is not None:
            value, error = (
                np.where(heads.allows(role), numbers, np.nan) for numbers in (value, error)
            )
        values[role.name] = value
        facts: dict[str, Any] = {
            name: getattr(role, name) for name in RoleValues.__struct_fields__[:-2]
        }
        roles.append(
            RoleValues(**facts, values=value.astype(np.float32), errors=error.astype(np.float32))
        )
    main = [
        [None if index < 0 else HEAD_ROLES[index].name for index in row]
        for row in main_roles(values).tolist()
    ]
    return roles, main


def _missing(
    random: RandomProbes, roles: Sequence[RoleValues], *, runs: bool, reads: bool
) -> list[str]:
    """Return notes on the roles that could not be measured on texts, or on random tokens."""
    worded = [role for role in roles if role.measured == "texts"]
    notes = list[str]()
    if worded and all(np.isnan(role.values).all() for role in worded):
        names = _not_measured([role.name for role in worded])
        notes.append(f"{names}: no text has a word after its first two tokens")
    if any(role.name == "receiver" and np.isnan(role.values).all() for role in roles):
        notes.append(f"receiver is not measured: no text has {FEWEST_SPANS} sentences, or spans")
    sizes = {"repeated": random.repeated, "needle": random.needle, "tripled": random.tripled}
    if missed := [role.name for role in roles if sizes.get(role.measured, 1) == 0]:
        reason = "the model takes no text"
        if reads:
            reason = "the vocabulary or the longest text of this model is too small"
        notes.append(
            f"{_not_measured(missed)}: {reason if runs else 'random tokens need a model that runs them'}"
        )
    return notes


def _not_measured(names: Sequence[str]) -> str:
    if len(names) > 1:
        subject = f"{', '.join(names[:-1])} and {names[-1]} are"
    else:
        subject = f"{names[0]} is"
    return f"{subject} not measured"
