"""Compare drawn config.json files with transformers: attention is equal, or one of the two refuses the file.

python -m tests.families.config_fuzz 3000                  as many files, and a line for each that differs
python -m tests.families.config_fuzz 500 --family gemma3_text --start 7000
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, family_for, read_config
from tests.families.dialects import VOCAB, Case, draw
from tests.helpers import native_stages
from tests.helpers.tiny_models import raise_weights

TOLERANCE = 1e-5
_MOST_PARAMETERS = 1_000_000  # a size that the file leaves out is thousands in transformers


@dataclass(frozen=True)
class Outcome:
    """What came of a file."""

    kind: str  # `equal`, `refused by attnscope`, `refused by transformers` or `different`
    detail: str = ""  # why it was refused, or by how much it differs


def hold(case: Case, folder: Path) -> Outcome:
    """Build the model in transformers from exactly this file, open its weights natively, and compare all weights."""
    where = str(folder / "config.json")
    try:
        config = read_config(family_for(case.raw, where), case.raw, where)
    except AttnscopeError as e:
        return Outcome("refused by attnscope", str(e).removeprefix(where + ": "))
    try:
        model = _build(case)
        segments = torch.arange(_ids(case).shape[1])[None] % max(1, config.n_segments)
        theirs = _weights(model, _ids(case), segments if config.n_segments else None)
    except Exception as e:  # whatever transformers makes of it
        return Outcome(
            "refused by transformers", f"{type(e).__name__}: {str(e).splitlines()[0][:200]}"
        )
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(case.raw))
    try:
        stack = native_stages.open_stack(folder)
    except AttnscopeError as e:
        return Outcome("refused by attnscope", str(e).removeprefix(where + ": "))
    mine = [
        one.weights for one in native_stages.run(stack, _ids(case), [_ids(case).shape[1]], segments)
    ]
    if len(mine) != len(theirs):
        return Outcome("different", f"{len(mine)} layers for {len(theirs)}")
    gap = max(
        float((a - b).abs().nan_to_num(nan=torch.inf).max())
        for a, b in zip(mine, theirs, strict=True)
    )
    return Outcome("equal" if gap <= TOLERANCE else "different", f"{gap:.1e}")


def _ids(case: Case) -> Tensor:
    generator = torch.Generator().manual_seed(case.seed)
    return torch.randint(5, VOCAB, (1, 9 + case.seed % 10), generator=generator)


def _build(case: Case) -> hf.PreTrainedModel:
    config = hf.CONFIG_MAPPING[case.model_type].from_dict(json.loads(json.dumps(case.raw)))
    kind = hf.AutoModelForTextEncoding if case.model_type == "t5" else hf.AutoModel
    if case.with_head and case.model_type != "t5":
        masked = case.model_type in ("distilbert", "modernbert")
        kind = hf.AutoModelForMaskedLM if masked else hf.AutoModelForCausalLM
    with torch.device("meta"):
        size = sum(
            p.numel() for p in kind.from_config(config, attn_implementation="eager").parameters()
        )
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(case.seed)
    model = raise_weights(
        kind.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    )
    with torch.no_grad():
        # as small as trained ones, so that an epsilon shows
        model.get_input_embeddings().weight.mul_(0.1)
    return model


@torch.no_grad()
def _weights(model: hf.PreTrainedModel, ids: Tensor, segments: Tensor | None) -> list[Tensor]:
    more: dict[str, Any] = {} if segments is None else {"token_type_ids": segments}
    found = model.base_model(
        input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, **more
    )
    return list(found.attentions)


def hold_all(cases: list[Case]) -> list[tuple[Case, Outcome]]:
    """Every case, in a folder of its own that is gone afterwards."""
    found = []
    for case in cases:
        folder = Path(tempfile.mkdtemp(prefix="config"))
        try:
            found.append((case, hold(case, folder)))
        finally:
            shutil.rmtree(folder)
    return found


def least(case: Case) -> Case:
    """A case that differs, without the keys that do not matter for that."""
    for name in sorted(case.raw.keys() - {"model_type"}):
        fewer = Case(
            case.seed,
            {key: value for key, value in case.raw.items() if key != name},
            case.with_head,
        )
        if hold_all([fewer])[0][1].kind == "different":
            case = fewer
    return case


def main() -> int:
    """Hold as many files as asked, tell how many ended how, and print those that differ; 1 where any does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="how many files")
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    parser.add_argument("--family", choices=sorted(FAMILIES), help="only this model_type")
    parser.add_argument("--refusals", action="store_true", help="print refusals as well")
    asked = parser.parse_args()
    types = (asked.family,) if asked.family else tuple(FAMILIES)
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    for seed in range(asked.start, asked.start + asked.count):
        case = draw(seed, types)
        outcome = hold_all([case])[0][1]
        counts[case.model_type, outcome.kind] += 1
        if outcome.kind == "different":
            print(f"{seed} differs by {outcome.detail}: {json.dumps(least(case).raw)}", flush=True)
        elif outcome.kind != "equal":
            reasons[f"{case.model_type} {outcome.kind}: {outcome.detail}"] += 1
    if asked.refusals:
        print(*(f"{count:5} {reason}" for reason, count in reasons.most_common()), sep="\n")
    for (model_type, kind), count in sorted(counts.items()):
        print(f"{model_type:12} {kind:24} {count}")
    return int(any(kind == "different" for _, kind in counts))


if __name__ == "__main__":
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    sys.exit(main())
