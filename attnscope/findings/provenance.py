"""What findings begin with: what produced the numbers, under which mask, and the text with its tokens."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import msgspec

from attnscope.base.layer_kinds import LayerPaths, attends
from attnscope.findings.arrays import along
from attnscope.findings.tokens import Token

AddedKeys = Literal["later", "far", "other"]
ADDED_KEYS: tuple[AddedKeys, ...] = get_args(AddedKeys)


class Findings(msgspec.Struct, frozen=True):
    """Plain data. A class made of another lists the attributes of both in its description."""

    def __init_subclass__(cls) -> None:
        """Add the attributes of the base to the description of a class, and so to its JSON Schema."""
        start = "Attributes:\n"
        shared = str(cls.__mro__[1].__doc__)
        if start in shared:
            cls.__doc__ = str(cls.__doc__).replace(
                start, start + shared.partition(start)[2].rstrip() + "\n", 1
            )


class Provenance(msgspec.Struct, frozen=True):
    """The model, versions and settings that produced the numbers.

    Attributes:
        attnscope: Version of attnscope.
        torch: Version of torch.
        model: The model as the user named it: a folder, a bundled sample or a config file.
        family: `model_type` of the checkpoint, or `config` for a stack described in TOML.
        fingerprint: SHA-256 (hex, first 16 digits) over config, tokenizer, tensor headers and samples of the data.
        engine: `native` or `transformers`.
        dtype: Data type that the model ran in; scores and softmax are always float32.
        device: Device, such as `cpu` or `cuda:0`.
        weights: `trained` if they come from a checkpoint that does not state otherwise, or `random`.
        n_layers: Number of layers in the model.
        n_heads: Number of query heads in a layer.
        notes: Anything else that changes how the numbers are read.
        part: `encoder`, `decoder` or `cross` of an encoder-decoder; otherwise None.
        adapter: The LoRA adapter that was added to the weights, as the user named it; None if there was none.
        values: `exact`, or `pooled` if a map of fixed size replaces the matrices of some text.
        versions: Versions of the libraries that affect the numbers, other than torch.
        weights_hash: SHA-256 (hex) over every byte of the weights' files; None unless requested.
        tokenizer: The tokenizer that replaces the model's own, as the user named it; None if there is none.
        ignored_keys: Keys of config.json that were ignored, because no code of transformers reads them or at the user's
            request; `notes` tells them apart.
        layer_kinds: The kinds of the paths of every layer, such as `[["gated delta"], ["softmax"]]`; empty if every
            layer is one path of attention over tokens.
        scale: Factor of scores that every layer had in place of the model's own; None for its own.
        details: Routine facts on how the model was found and read, such as options stored in tokenizer.json that are
            not used; screens show them with `--verbose`.
    """

    attnscope: str
    torch: str
    model: str
    family: str
    fingerprint: str
    engine: str
    dtype: str
    device: str
    weights: str
    n_layers: int
    n_heads: int
    notes: list[str] = []
    part: str | None = None
    values: str = "exact"
    versions: dict[str, str] = {}
    weights_hash: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    ignored_keys: list[str] = []
    details: list[str] = []
    layer_kinds: list[LayerPaths] = []
    scale: float | None = None

    @property
    def attending(self) -> Sequence[int]:
        """The layers with attention over tokens."""
        if not self.layer_kinds:
            return range(self.n_layers)
        return [layer for layer, paths in enumerate(self.layer_kinds) if attends(paths)]


class MaskUse(msgspec.Struct, frozen=True):
    """Which keys a query could see, and why.

    Attributes:
        own: The model's own mask, such as `causal` or `bidirectional`; of several that it was trained under, the one
            that it uses by itself.
        used: The mask that the numbers shown were computed under.
        what_if: None if `used` is the model's own; otherwise `stack` (the whole model ran under the new mask) or
            `same-scores` (the new mask was applied to the q·k that the model computed under its own).
        hidden: Tokens that were hidden from all queries, as typed; None if there were none. TextReport.hidden has their
            positions.
        trained: Other masks that the model was trained under, such as `prefix:4`.
        added: Which keys some query sees although the model's own mask hides them: `later` ones, ones `far` away
            (outside the model's window), or `other` ones.
        hides: Whether it hides any key that the model's own mask shows; None if `used` is the model's own, or unknown.
    """

    own: str
    used: str
    what_if: str | None = None
    hidden: str | None = None
    trained: list[str] = []
    added: list[AddedKeys] = []
    hides: bool | None = None


class ModelFindings(Findings, frozen=True):
    """Findings about a model.

    Attributes:
        provenance: What produced the numbers.
        mask: Which keys a query could see.
    """

    provenance: Provenance
    mask: MaskUse


class TokenizedText(Findings, frozen=True):
    """A text and its tokens.

    Attributes:
        text: The text.
        pair: The second text of an encoder's pair; None if there is none.
        tokens: Tokens of the query side, all of them.
        context: Tokens of the key side under cross-attention; None if queries and keys are the same tokens.
    """

    text: str
    pair: str | None
    tokens: Annotated[list[Token], along("token", filled=True)]
    context: Annotated[list[Token], along("source", filled=True)] | None

    @property
    def sources(self) -> list[Token]:
        """The tokens of the keys."""
        if self.context is None:
            return self.tokens
        return self.context

    def axis_lengths(self) -> dict[str, int]:
        """Return the numbers of tokens."""
        return {"token": len(self.tokens), "source": len(self.sources)}


class TextFindings(TokenizedText, frozen=True):
    """Findings about one text.

    Attributes:
        provenance: What produced the numbers.
        mask: Which keys a query could see.
    """

    provenance: Provenance
    mask: MaskUse
