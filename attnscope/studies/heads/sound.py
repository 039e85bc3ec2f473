"""Measure which heads of a model that writes speech time its words: cross-attention that goes through the sound."""

from functools import partial

import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.findings.arrays import Array
from attnscope.findings.head_findings import HeadRoles, Probes
from attnscope.findings.head_roles import ROLES, SOUND
from attnscope.request.run_config import RunConfig
from attnscope.run.analysis.alignment import alignment_gains, choose_alignment_heads
from attnscope.run.session import Session, describe_mask_use, observe, provenance
from attnscope.run.sound import record_heads, windows
from attnscope.studies.heads.run import SurveyOptions, role_values

_FEWEST = 4  # tokens of a window that is measured


def survey_sound(
    run: RunConfig,
    options: SurveyOptions,
    session: Session,
) -> HeadRoles:
    """Measure the role `align` of every head of cross-attention, on every window of the sounds."""
    source, run = session.open(run)
    if set(options.roles or (SOUND,)) != {SOUND}:
        hint = f"use {arg('role', SOUND)}, or a text in place of {arg('audio')}"
        raise UsageError(f"only {SOUND} is measured on speech", where=arg("role"), hint=hint)
    shape = source.config.n_layers, source.config.n_heads
    gains: list[Array] = []
    tokens = 0
    listed: tuple[tuple[int, int], ...] = ()
    device = None
    mask = None
    for window in (window for text in run.texts for window in windows(text, source)):
        read = window.read
        if read is None or read.sound is None or read.speech is None:
            hint = f"use a model that writes speech, such as Whisper, with {arg('part', 'cross')}"
            raise UsageError(
                "heads align a text with sound by cross-attention",
                where=arg("role", SOUND),
                hint=hint,
            )
        session.on_progress("hearing", int(read.sound.start), int(read.sound.seconds) + 1)
        listed = read.speech.heads
        recorded = record_heads(run, partial(observe, source, session), window)
        device = recorded.hidden.device
        mask = describe_mask_use(source, run, recorded.engine.describe_mask())
        if recorded.weights.shape[1] < _FEWEST:
            continue
        tokens += recorded.weights.shape[1]
        of_window = np.full(shape, np.nan)
        of_window[tuple(zip(*recorded.heads, strict=True))] = alignment_gains(
            recorded.weights, read.speech.median_width
        )
        gains.append(of_window)
    if not gains or device is None or mask is None:
        hint = "use a longer recording of speech"
        raise UsageError(
            "the model wrote down too few words to align", where=arg("audio"), hint=hint
        )
    of_windows = np.stack(gains)
    sums = {
        SOUND: of_windows,
        "aligned": np.ones_like(of_windows),
        "rows": np.ones_like(of_windows),
    }
    roles, main = role_values(sums, [ROLES[SOUND]])
    probes = Probes(options.seed, 0, 0, 0, [], [], len(gains), tokens, shipped=False)
    notes = _advice(of_windows.mean(axis=0), listed)
    return HeadRoles(provenance(source, run, device), mask, probes, roles, main, notes)


def _advice(gains: Array, listed: tuple[tuple[int, int], ...]) -> list[str]:
    """Return the list that generation_config.json wants, and how the checkpoint's own compares with it."""
    places = choose_alignment_heads(np.nan_to_num(gains.ravel(), nan=-np.inf))
    best = [divmod(index, gains.shape[1]) for index in places]
    spelled = ", ".join(f"[{layer}, {head}]" for layer, head in best)
    notes = [f'for generation_config.json: "alignment_heads": [{spelled}]']
    if listed:
        order = [
            divmod(int(index), gains.shape[1])
            for index in np.argsort(-np.nan_to_num(gains.ravel(), nan=-np.inf))
        ]
        leading = len(set(listed) & set(order[: len(listed)]))
        same = "the same heads"
        if set(listed) != set(best):
            same = f"{len(listed)} heads, {leading} of them"
        end = "" if set(listed) == set(best) else f" among the first {len(listed)}"
        notes.append(f"the checkpoint lists {same}{end}")
    else:
        notes.append("the checkpoint lists none")
    return notes
