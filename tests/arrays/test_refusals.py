"""Hostile and contradictory arrays: each ends in one line that says what is wrong and where."""

import io
import json
import re
import struct
import zipfile

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main

RNG = np.random.default_rng(0)
Q, K, V = (RNG.normal(size=(heads, 5, 4)).astype(np.float32) for heads in (4, 2, 2))
HIDDEN = np.ma.masked_array(Q, Q > 1)


def with_value(array, value, at=(1, 2, 3)):
    changed = array.copy()
    changed[at] = value
    return changed


class Failing:
    """An array whose library cannot convert it."""

    def __array__(self, *_args, **_options):
        raise RuntimeError("out of order")


REFUSED = {
    "NaN": (
        lambda: attnscope.from_qkv(with_value(Q, np.nan), K, V),
        "layer 0: q: holds nan at token 2, head 1, dim",
    ),
    "infinity": (
        lambda: attnscope.from_qkv(Q, with_value(K, -np.inf), V),
        "layer 0: k: holds -inf at token 2, head 1",
    ),
    "a NaN in v": (
        lambda: attnscope.from_qkv(Q, K, with_value(V, np.nan)),
        "layer 0: v: holds nan",
    ),
    "heads": (
        lambda: attnscope.from_qkv(Q[:3], K, V),
        "layer.0: q has 3 heads, k 2, v 2; the query heads are a multi",
    ),
    "value heads": (lambda: attnscope.from_qkv(Q, K, V[:1]), "q has 4 heads, k 2, v 1"),
    "widths": (lambda: attnscope.from_qkv(Q[..., :3], K, V), "layer.0: q has width 3, k 4"),
    "fewer keys than queries": (
        lambda: attnscope.from_qkv(Q, K[:, :1], V[:, :1]),
        "q has 5 tokens, k 1, v 1; give k and v of every token",
    ),
    "no token": (lambda: attnscope.from_qkv(Q[:, :0], K[:, :0]), "holds no token"),
    "two axes": (
        lambda: attnscope.from_qkv(Q[0], K[0]),
        r"has 2 axes \[5, 4\], but the layout heads,tokens,width has 3",
    ),
    "whole numbers": (
        lambda: attnscope.from_qkv(Q.astype(int), K),
        "q: has type int64; pass float32, bfloat16 or",
    ),
    "bytes": (
        lambda: attnscope.from_qkv((Q * 9).astype(np.int8), K),
        "q: has type int8; .* dequantise",
    ),
    "booleans": (lambda: attnscope.from_qkv(Q > 0, K), "q: has type bool"),
    "complex numbers": (
        lambda: attnscope.from_qkv(Q + 1j, K),
        "q: holds complex64, no real numbers",
    ),
    "objects": (lambda: attnscope.from_qkv(Q.astype(object), K), "q: holds object"),
    "words": (lambda: attnscope.from_qkv("queries", K), "q: holds <U7, no real numbers"),
    "ragged lists": (lambda: attnscope.from_qkv([[1.0], [1.0, 2.0]], K), "q: is no array"),
    "sparse": (
        lambda: attnscope.from_qkv(torch.tensor(Q).to_sparse(), K),
        "q: is a sparse or nested tensor",
    ),
    "layers": (lambda: attnscope.from_qkv([Q, Q], [K]), r"k: has layers \[0\], but q has \[0, 1\]"),
    "numbers of layers": (
        lambda: attnscope.from_qkv([Q, Q], [K, K], layers=[3]),
        "are not the numbers of 2 layers",
    ),
    "names of layers": (
        lambda: attnscope.from_qkv({"a": Q}, {"a": K}),
        "q: is a dict without numbers of layers",
    ),
    "sizes of layers": (
        lambda: attnscope.from_qkv([Q, Q[:2]], [K, K]),
        "has 2 heads × 5 tokens × 4, another layer 4",
    ),
    "layout": (
        lambda: attnscope.from_qkv(Q, K, layout="heads,tokens"),
        "'heads,tokens' is not a layout; use heads,tok",
    ),
    "layout twice": (lambda: attnscope.from_qkv(Q, K, layout="tth"), "'tth' is not a layout"),
    "tokens": (
        lambda: attnscope.from_qkv(Q, K, tokens=["a", "b"]),
        "tokens: 2 tokens for 5 rows; give one for every",
    ),
    "a word": (
        lambda: attnscope.from_qkv(Q, K, tokens="abcde"),
        "tokens: str is no list of tokens",
    ),
    "a token": (
        lambda: attnscope.from_qkv(Q, K, tokens=["a", "b", 1.5, "d", "e"]),
        "tokens: token 2 is 1.5",
    ),
    "cu_seqlens": (
        lambda: attnscope.from_qkv(Q, K, cu_seqlens=[0, 3, 3, 5]),
        r"\[0, 3, 3, 5\] do not increase from 0",
    ),
    "the end": (
        lambda: attnscope.from_qkv(Q, K, cu_seqlens=[0, 4]),
        "cu_seqlens: ends at 4, but .* has 5 tokens .* layout",
    ),
    "fractions": (
        lambda: attnscope.from_qkv(Q, K, cu_seqlens=[0, 2.5, 5]),
        "cu_seqlens: .* are not whole numbers",
    ),
    "lengths": (
        lambda: attnscope.from_qkv(Q[None], K[None], layout="bhtd", lengths=[9]),
        "lengths: .* do not fit 1 text",
    ),
    "scale": (
        lambda: attnscope.from_qkv(Q, K, scale=float("nan")),
        "scale: nan is not a finite number",
    ),
    "soft-cap": (lambda: attnscope.from_qkv(Q, K, softcap=0), "softcap: 0 is not above 0"),
    "window": (lambda: attnscope.from_qkv(Q, K, window=0), "window: 0 is no window"),
    "sinks": (lambda: attnscope.from_qkv(Q, K, sinks=[0.0, 1.0]), "sinks: 2 for 4 heads"),
    "a layer's scale": (
        lambda: attnscope.from_qkv(Q, K, scale={4: 1.0}),
        "scale: is given for layer 4, which is not th",
    ),
    "rotation": (
        lambda: attnscope.from_qkv(Q, K, rope={"theta": 1e4, "fraction": 0.75}),
        "rope of layer 0: rotates 3 of",
    ),
    "no rotation": (
        lambda: attnscope.from_qkv(Q, K, rope={"base": 1e4}),
        "rope: .*unknown field `base`",
    ),
    "an infinite window": (
        lambda: attnscope.from_qkv(Q, K, window=float("inf")),
        "window: inf is not a whole number",
    ),
    "no keys": (lambda: attnscope.from_qkv(Q, None), "given arrays: has no k; give q and k"),
    "no weights": (lambda: attnscope.from_weights(None), "weights: is None"),
    "a tensor without numbers": (
        lambda: attnscope.from_qkv(torch.empty(4, 5, 4, device="meta"), K),
        "device meta",
    ),
    "10^12 numbers in one": (
        lambda: attnscope.from_qkv(*[np.broadcast_to(np.float32(1), (2, 10**12, 4))] * 2),
        "needs about 29.1 TiB .q 29.1 TiB., but half of the free memory is",
    ),
    "10^12 numbers in one tensor": (
        lambda: attnscope.from_qkv(*[torch.ones(1).expand(2, 10**12, 4)] * 2),
        "needs about 29.1 TiB .q 29.1 TiB., but half of the free memory is",
    ),
    "a library that fails": (
        lambda: attnscope.from_qkv(Failing(), K),
        "q: is no array .out of order.",
    ),
    "a masked array": (
        lambda: attnscope.from_qkv([Q, HIDDEN], [K, K]),
        "layer 1: q: is a masked array that hides nu",
    ),
    "a masked mask": (
        lambda: attnscope.from_qkv(Q, K, mask=np.ma.masked_array(np.tri(5, dtype=bool), np.eye(5))),
        "mask: is a masked array that hides cells",
    ),
    "masked sinks": (
        lambda: attnscope.from_qkv(Q, K, sinks=np.ma.masked_array(np.zeros(4), [1, 0, 0, 0])),
        "sinks: is a masked array that hides numbers",
    ),
    "a masked mask of other scores": (
        lambda: attnscope.from_qkv(Q, K).inspect(
            mask=np.ma.masked_array(np.tri(5, dtype=bool), np.eye(5))
        ),
        "mask: is a masked array that hides cells",
    ),
    "a scaled rotation": (
        lambda: attnscope.from_qkv(Q, K, rope={"scaling": {"kind": "llama3", "factor": 8}}),
        "rope of layer 0: rotary scaling 'llama3' has no original_max_positions",
    ),
    "another scaled rotation": (
        lambda: attnscope.from_qkv(Q, K, rope={"scaling": {"rope_type": "yarn", "factor": 8}}),
        "rope: Object contains unknown field `rope_type` .* scaling takes kind .linear, llama3, yarn, longrope., fac",
    ),
    "no spans": (
        lambda: attnscope.from_qkv(Q, K).inspect(spans=[]),
        "spans: has no span; pass texts, or pairs",
    ),
    "no named spans": (
        lambda: attnscope.from_qkv(Q, K, spans={}),
        "spans: has no span; name at least one: {",
    ),
    "spans elsewhere": (
        lambda: attnscope.from_qkv(Q, K).inspect(spans=["bank"]),
        "spans: 'bank' is not in the text",
    ),
    "mask": (
        lambda: attnscope.from_qkv(Q, K, mask="casual"),
        "mask: unknown mask 'casual'; did you mean 'causal'",
    ),
    "own mask": (
        lambda: attnscope.from_qkv(Q, K, mask="own"),
        "mask: given arrays have no model's own mask",
    ),
    "mask size": (
        lambda: attnscope.from_qkv(Q, K, mask=np.ones((4, 4), bool)),
        r"mask: has shape \[4, 4\], but the texts",
    ),
    "a bias of NaN": (
        lambda: attnscope.from_qkv(Q, K, mask=np.full((5, 5), np.nan)),
        "mask: holds NaN or inf, and is added to scores",
    ),
    "whole numbers as a mask": (
        lambda: attnscope.from_qkv(Q, K, mask=np.ones((5, 5), int)),
        "mask: is int64 of shape",
    ),
    "masks of other layers": (
        lambda: attnscope.from_qkv([Q, Q], [K, K], mask=[np.tri(5, dtype=bool)]),
        "mask: has 1 values for 2 layers; give one for each; masks of heads are one array",
    ),
    "a mask by name": (
        lambda: attnscope.from_qkv(Q, K, mask={"a": "causal"}),
        "mask: is given for layers .'a'.",
    ),
    "a mask's file": (
        lambda: attnscope.from_qkv(Q, K, mask="m.npy"),
        "mask: 'm.npy' is a file; pass the matrix",
    ),
    "documents": (
        lambda: attnscope.from_qkv(Q, K, mask="causal+docs:2,2"),
        "mask: the documents have 4 tokens, but the texts have 5",
    ),
    "document ends": (
        lambda: attnscope.from_qkv(Q, K, mask="docs:eos"),
        "mask: given arrays name no token that",
    ),
    "a score function": (
        lambda: attnscope.from_qkv(Q, K, score_mod=2.0),
        "score_mod: float cannot be called",
    ),
    "explained functions": (
        lambda: attnscope.from_qkv(Q, K, V, score_mod=lambda s, b, h, q, k: s).explain(
            query=1, layer=0, head=0
        ),
        "score_mod: the arithmetic that is explained has no such function",
    ),
    "memory": (lambda: attnscope.from_qkv(Q, K, max_memory="1K"), "needs about"),
    "by value": (lambda: attnscope.from_qkv(Q, K, by="value"), "by='value': no values are given"),
    "output": (
        lambda: attnscope.from_qkv(Q, K, stages="output"),
        "stages='output': no values are given",
    ),
    "negative weights": (
        lambda: attnscope.from_weights(-np.eye(5)),
        "layer 0: -1 is below 0 .head 0, query 0, key 0",
    ),
    "scores": (
        lambda: attnscope.from_weights(np.abs(RNG.normal(size=(2, 5, 5))) * 9),
        "sums to more than 1",
    ),
    "wide weights": (
        lambda: attnscope.from_weights(np.ones((2, 5, 4)) / 4),
        "has texts of 5 queries and 4 keys",
    ),
    "a mask for weights": (
        lambda: attnscope.from_weights(np.eye(5), hide=1),
        "no other mask can be applied to given",
    ),
    "explained weights": (
        lambda: attnscope.from_weights(np.eye(5)).explain(query=1),
        "given weights have no arithmetic",
    ),
    "scores of weights": (
        lambda: attnscope.from_weights(np.eye(5)).measure_heads(measure="max_score"),
        "given weights come without scores",
    ),
    "stages of weights": (
        lambda: attnscope.from_weights(np.eye(5), stages="scores"),
        "given weights come without scores",
    ),
    "a model": (
        lambda: attnscope.inspect(model="riverbank", qkv="x.npz"),
        "qkv and model cannot be used together",
    ),
    "a text": (
        lambda: (
            attnscope.from_qkv(Q, K).inspect().texts
            and attnscope.inspect("a", qkv=attnscope.from_qkv(Q, K))
        ),
        "qkv and text cannot be used together",
    ),
    "no arrays": (lambda: attnscope.inspect(qkv=5), "qkv: int is not queries, keys and values"),
    "another model's options": (
        lambda: attnscope.inspect(qkv=attnscope.from_qkv(Q, K), dtype="bfloat16"),
        "qkv and dtype='bfloat16' cannot be used together: tokens, queries and keys are given",
    ),
    "predictions": (
        lambda: attnscope.from_qkv(Q, K).inspect(predict=True),
        "predict needs a model, and only queries",
    ),
    "generation": (
        lambda: attnscope.from_qkv(Q, K).inspect(generate=3),
        "generate needs a model, and only queries",
    ),
    "value zeroing": (
        lambda: attnscope.from_qkv(Q, K).inspect(measure="value-zeroing"),
        "value-zeroing needs a model",
    ),
    "ablation": (
        lambda: attnscope.open_model(qkv=attnscope.from_qkv(Q, K)).ablate(None, each="head"),
        "needs a model",
    ),
    "check": (
        lambda: attnscope.open_model(qkv=attnscope.from_qkv(Q, K)).check(),
        "qkv and text|check needs a model",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_contradictions_are_refused_in_one_line(call, message):
    with pytest.raises(attnscope.AttnscopeError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def npz(tmp_path, **arrays):
    np.savez(tmp_path / "x.npz", **arrays)
    return tmp_path / "x.npz"


def stored(tmp_path, header, data=b"\0" * 16, name="layer.0.q.npy"):
    """An .npz whose array has a header of its own."""
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(entry, header)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr(name, entry.getvalue() + data)
    return tmp_path / "x.npz"


def safetensors(tmp_path, header, data=b""):
    raw = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return tmp_path / "x.safetensors"


def entry(shape, size, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}


def bomb(tmp_path):
    """64 MiB of zeros in a few kilobytes, in a setting that has to be read."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("layer.0.q", Q), ("layer.0.k", K), ("scale", np.zeros(9 << 20))):
            data = io.BytesIO()
            np.save(data, array)
            archive.writestr(f"{name}.npy", data.getvalue())
    return tmp_path / "x.npz"


FILES = {
    "10^12 elements": (
        lambda p: stored(p, {"descr": "<f4", "fortran_order": False, "shape": (4, 10**12, 4)}),
        "needs 64,000,000,000,000 bytes, the file has 16",
    ),
    "10^12 elements in safetensors": (
        lambda p: safetensors(p, {"layer.0.q": entry([10**6, 10**6], 16)}, b"\0" * 16),
        "needs 4000000000000 bytes",
    ),
    "an overflow": (
        lambda p: stored(p, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**40)}),
        "needs .* bytes, the file has 16",
    ),
    "negative": (
        lambda p: stored(p, {"descr": "<f4", "fortran_order": False, "shape": (-4, 1, 1)}),
        "negative|damaged|not a NumPy|needs",
    ),
    "objects": (
        lambda p: stored(p, {"descr": "|O", "fortran_order": False, "shape": (2,)}),
        "holds Python objects",
    ),
    "no header": (
        lambda p: (
            stored(p, {"descr": "<f4", "fortran_order": False, "shape": (1,)}, name="layer.0.k.npy")
            and _cut(p)
        ),
        "is not",
    ),
    "text": (lambda p: (p / "x.npz").write_text("hello") and p / "x.npz", "is not an .npz file"),
    "empty": (lambda p: (p / "x.npz").touch() or p / "x.npz", "is not an .npz file"),
    "a bomb": (bomb, "scale has 75,497,472 bytes|scale has"),
    "no keys": (lambda p: npz(p, **{"layer.0.q": Q}), "layer.0: has no k"),
    "nothing": (lambda p: npz(p, mask="causal"), "holds no queries, keys or values"),
    "an unknown name": (
        lambda p: npz(p, **{"layer.0.q": Q, "layer.0.k": K, "layer.0.scal": 1}),
        "unknown name 'layer.0.scal'; did you mean 'scale'",
    ),
    "another layer's arrays": (
        lambda p: npz(p, **{"layer.0.q": Q, "layer.0.k": K, "layer.1.weights": np.eye(5)[None]}),
        "layers hold different arrays",
    ),
    "both": (lambda p: npz(p, q=Q, k=K, **{"layer.0.q": Q}), "holds arrays of layers and"),
    "weights beside queries": (
        lambda p: npz(p, **{"layer.0.q": Q, "layer.0.k": K, "layer.0.weights": Q}),
        "has weights beside queries",
    ),
    "twice": (
        lambda p: npz(p, scale=1.0, **{"layer.0.q": Q, "layer.0.k": K, "layer.0.scale": 1.0}),
        "scale is given for all layers and for one",
    ),
    "NaN": (
        lambda p: npz(p, **{"layer.0.q": with_value(Q, np.nan), "layer.0.k": K}),
        "layer 0: q: holds nan",
    ),
    "bytes without a type": (
        lambda p: npz(p, **{"layer.0.q": Q.astype("V2"), "layer.0.k": K}),
        "has no type of numbers; save it as float32, or add",
    ),
    "float8": (
        lambda p: safetensors(
            p,
            {
                "layer.0.q": entry([4, 1, 1], 4, "F8_E4M3"),
                "layer.0.k": {"dtype": "F8_E4M3", "shape": [4, 1, 1], "data_offsets": [4, 8]},
            },
            b"\0" * 8,
        ),
        "has type f8_e4m3",
    ),
    "a long layer": (lambda p: npz(p, **{"layer.9999999.q": Q}), "unknown name 'layer.9999999.q'"),
    "too few tokens": (
        lambda p: npz(p, tokens=["a"], **{"layer.0.q": Q, "layer.0.k": K}),
        "tokens: 1 tokens for 5 rows",
    ),
    "another ending": (
        lambda p: (p / "x.pt").write_bytes(b"x") and p / "x.pt",
        "'.pt' is no format",
    ),
    "a folder": (lambda p: (p / "x.npz").mkdir() or p / "x.npz", "is a folder"),
}


def _cut(folder):
    data = (folder / "x.npz").read_bytes()
    (folder / "x.npz").write_bytes(data[: len(data) // 2])
    return folder / "x.npz"


@pytest.mark.parametrize(("make", "message"), FILES.values(), ids=FILES)
def test_damaged_and_hostile_files_are_refused_in_one_line(make, message, tmp_path, capsys):
    path = make(tmp_path)
    for command in (["run"], ["heads"], ["explain", "--query", "1", "--layer", "0", "--head", "0"]):
        assert main([*command, "--qkv", str(path)]) in (1, 2)
        error = capsys.readouterr().err
        assert error.startswith("attnscope: error: ") and error.count("\n") == 1 and "x." in error
        if command == ["run"]:
            assert re.search(message, error), error


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bytes_never_crash(seed, tmp_path, capsys):
    rng = np.random.default_rng(seed)
    path = npz(
        tmp_path,
        **{"layer.0.q": Q, "layer.0.k": K, "layer.0.v": V},
        tokens=list("abcde"),
        scale=0.4,
    )
    if seed % 2:
        from safetensors.numpy import save_file

        path = tmp_path / "x.safetensors"
        save_file(
            {"layer.0.q": Q, "layer.0.k": K},
            path,
            {"scale": "0.4", "tokens": '["a", "b", "c", "d", "e"]'},
        )
    data = bytearray(path.read_bytes())
    for at in rng.integers(len(data), size=rng.integers(1, 9)):
        data[at] = rng.integers(256)
    path.write_bytes(bytes(data[: rng.integers(1, len(data))] if seed % 5 == 0 else data))
    assert main(["run", "--qkv", str(path), "--quiet"]) in (0, 1, 2)
    assert capsys.readouterr().err.count("\n") <= 1


def test_what_the_command_line_refuses(tmp_path, capsys):
    path = str(npz(tmp_path, **{"layer.0.q": Q, "layer.0.k": K, "layer.0.v": V}))
    for words, message in (
        (["run", "a text"], "--qkv and TEXT cannot be used together"),
        (["run", "--model", "riverbank"], "--qkv and --model cannot be used together"),
        (["run", "--config", "causal"], "--qkv and --config cannot be used together"),
        (
            ["run", "--engine", "transformers"],
            "--qkv and --engine transformers cannot be used together",
        ),
        (
            ["run", "--what-if", "stack", "--mask", "causal"],
            "--qkv and --what-if stack cannot be used together",
        ),
        (["run", "--generate", "2"], "needs a model, and only queries and keys are given"),
        (["run", "--predict"], "needs a model"),
        (["run", "--by", "logit"], "needs a model"),
        (["run", "--by", "projected"], "the model's output projection was not found"),
        (["run", "--layer", "2"], "there is no layer 2"),
        (
            ["ablate", "--each", "head"],
            "no such option '--qkv'; it is an option of run, compare, explain, heads, explore",
        ),
    ):
        assert main([*words, "--qkv", path]) in (1, 2), words
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
