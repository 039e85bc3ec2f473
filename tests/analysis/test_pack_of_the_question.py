"""Does my pack leak? `run --input-ids pack.json` says so first, with the mask that shows it apart, on SmolLM2.

Packs are drawn: documents one after the other in a row. What eager transformers reads decides: with a cache, and with
use_cache=False, which keeps documents apart if their positions restart.
"""

import json
import re
from itertools import chain
from pathlib import Path

import numpy as np
import torch

import attnscope
from attnscope.cli import main
from tests.helpers.draws import drawn
from tests.helpers.reference_smollm2 import open_reference

SEED = 51
SAID = re.compile(
    r"position_ids restart at tokens? (?P<starts>[\d, ]+), and tokens read the packed documents before theirs: as in "
    r"transformers while it makes a cache; with use_cache=False, it keeps documents apart; --mask (?P<mask>\S+) shows "
    "them apart"
)


def _pack(draw: np.random.Generator) -> list[list[int]]:
    """Draw two to four documents of ordinary tokens."""
    return [
        draw.integers(300, 40_000, size).tolist()
        for size in draw.integers(3, 8, draw.integers(2, 5))
    ]


@torch.no_grad()
def _weights(path: Path, ids: list[int], positions: list[int], *, cache: bool) -> np.ndarray:
    """Return eager weights of every layer and head, (layers, heads, queries, keys)."""
    model = open_reference(path)
    given = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
    layers = model(**given, use_cache=cache, output_attentions=True).attentions
    return torch.stack([layer[0] for layer in layers]).numpy()


def test_the_first_answer_says_whether_a_pack_leaks_and_the_mask_to_type_shows_it_apart(smollm2):
    """Of ten packs, each once with positions that restart and once as one document."""
    draw = np.random.default_rng(SEED)
    with attnscope.open_model(smollm2) as model:
        for _ in range(drawn(10)):
            documents = _pack(draw)
            lengths = [len(document) for document in documents]
            ids = [token for document in documents for token in document]
            positions = [place for size in lengths for place in range(size)]
            of_token = np.repeat(np.arange(len(lengths)), lengths)
            other = of_token[:, None] != of_token
            chosen = {
                "input_ids": ids,
                "position_ids": positions,
                "layer": "all",
                "head": "all",
                "stages": "weights",
            }
            leaking = model.inspect(**chosen, top=0)
            (note,) = leaking.provenance.notes
            said = SAID.fullmatch(note)
            assert said is not None, note
            assert [int(start) for start in said["starts"].split(",")] == np.cumsum(lengths)[
                :-1
            ].tolist()
            together = _weights(smollm2, ids, positions, cache=True)
            np.testing.assert_allclose(
                leaking.weights.reshape(together.shape), together, rtol=0, atol=2e-4
            )
            assert together[:, :, other].max() > 0.01, "it leaks in transformers, too"
            apart = model.inspect(**chosen, top=0, mask=said["mask"])
            assert apart.provenance.notes == []
            separate = _weights(smollm2, ids, positions, cache=False)
            shown = apart.weights.reshape(separate.shape)
            np.testing.assert_allclose(shown, separate, rtol=0, atol=2e-4)
            assert (shown[:, :, other] == 0).all() and (separate[:, :, other] == 0).all()
            alone = model.inspect(input_ids=ids, layer=0, head=0, top=0)
            assert alone.provenance.notes == [], "positions that count on are one document's"


def test_the_command_says_so_above_the_numbers_and_fails_if_it_must_not(smollm2, tmp_path, capsys):
    draw = np.random.default_rng(SEED + 1)
    documents = _pack(draw)
    positions = [list(range(len(document))) for document in documents]
    file = tmp_path / "pack.json"
    pack = {"input_ids": [list(chain(*documents))], "position_ids": [list(chain(*positions))]}
    file.write_text(json.dumps(pack))
    asked = ["run", "--input-ids", str(file), "--model", str(smollm2)]
    assert main(asked) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert lines.index("position_ids restart") < lines.index("chosen automatically")
    mask = re.search(r"--mask (\S+) shows", lines)[1]
    assert main([*asked, "--strict"]) == 1
    capsys.readouterr()
    assert main([*asked, "--mask", mask, "--strict"]) == 0
