"""What happens to a token after its attention: all heads together, the residual stream, norms and the MLP."""

from collections.abc import Mapping

from attnscope.base.model_config import ModelConfig
from attnscope.findings.explain import ArithmeticCheck, Vector
from attnscope.model import head_capture
from attnscope.model.head_capture import HeadCapture
from attnscope.model.stack import Stack
from attnscope.studies.explain import arithmetic
from attnscope.studies.explain.arithmetic import Numbers, check
from attnscope.studies.explain.origins import norm_made, vector

_INPUT = "the layer's input"
_RESIDUAL = "residual"


def rest_of_layer(
    stack: Stack, capture: HeadCapture, dtype: str
) -> tuple[list[Vector], list[ArithmeticCheck]]:
    """Return the vectors from the output projection to the layer's output, in order, and the checks of their sums.

    Both are empty if the layer's modules were not seen, as those of another engine or of a very long text.
    """
    c = stack.config
    captured = capture.captured
    if not {"attention", "layer_output"} <= set(captured) or (c.d_mlp and "mlp" not in captured):
        return [], []
    entered = captured["stream"][-1]
    vectors = [
        vector(
            "attention",
            _attention_made(c),
            captured["attention"],
            bias=bool(c.out_projection and c.out_bias),
        )
    ]
    added = captured["attention"]
    if "attention_normed" in captured:
        vectors.append(
            vector("normed", norm_made(c, "attention", added), captured["attention_normed"])
        )
        added = captured["attention_normed"]
    factor = 1.0 if c.residual_scale is None else c.residual_scale
    times = "" if c.residual_scale is None else f"{factor:g} · "
    middle = entered + added * factor if c.residual else added * factor
    if c.residual:
        vectors.append(vector(_RESIDUAL, f"{_INPUT} + {times}{vectors[-1].name}", middle))
    if not c.d_mlp:
        return vectors, [check("layer output", f"{_RESIDUAL} = the layer's output", middle, captured["layer_output"],
                               abs(middle), dtype)]  # fmt: skip
    post = c.norm_order == "post"
    source = entered if c.parallel and not post else middle
    if c.norm != "none" and c.norm_order != "output":
        name = _INPUT if c.parallel and not post else _RESIDUAL
        vectors.append(vector("normed", norm_made(c, name, source), captured["mlp_input"]))
    vectors.append(
        vector("MLP", _mlp_made(c), captured["mlp"], bias=c.mlp_bias and not c.n_experts)
    )
    added = captured["mlp"]
    if "mlp_normed" in captured:
        vectors.append(vector("normed", norm_made(c, "MLP", added), captured["mlp_normed"]))
        added = captured["mlp_normed"]
    base = captured["mlp_input"] if post else middle
    total = base + added * factor if c.residual else added * factor
    if c.residual:
        made = f"{'normed' if post else _RESIDUAL} + {times}{vectors[-1].name}"
    else:
        made = vectors[-1].name
    if post:
        vectors.append(vector("sum", made, total))
        made = norm_made(c, "sum", total)
    vectors.append(
        vector("output", f"{made}: what enters the next layer", captured["layer_output"])
    )
    return vectors, _checks(stack, capture, captured, middle, total, dtype)


def _checks(
    stack: Stack,
    capture: HeadCapture,
    captured: Mapping[str, Numbers],
    middle: Numbers,
    total: Numbers,
    dtype: str,
) -> list[ArithmeticCheck]:
    """Check the norm before the MLP and the layer's output, where their formulas are those of a plain block."""
    c = stack.config
    checks = []
    post = c.norm_order == "post"
    plain = not (c.parallel or c.shared_norm or c.norm == "none")
    if plain and c.norm_order in ("pre", "post"):
        name = "norm_attention" if post else "norm_mlp"
        again = arithmetic.norm(
            c, middle, *head_capture.norm_parameters(stack, capture.layer, name)
        )
        checks.append(
            check("norm of the residual", "the residual, normed = the MLP's input", again, captured["mlp_input"],
                  abs(again) + 1, dtype)
        )  # fmt: skip
    output = total
    formula = "residual + MLP = the layer's output"
    if post:
        output = arithmetic.norm(
            c, total, *head_capture.norm_parameters(stack, capture.layer, "norm_mlp")
        )
        formula = "the sum, normed = the layer's output"
    if not post or plain:
        sizes = abs(middle) + abs(captured["mlp"]) + 1
        checks.append(
            check("layer output", formula, output, captured["layer_output"], sizes, dtype)
        )
    return checks


def _attention_made(c: ModelConfig) -> str:
    if c.out_projection:
        return "W_O × the outputs of all heads"
    return "the outputs of all heads, side by side"


def _mlp_made(c: ModelConfig) -> str:
    if c.n_experts:
        return f"{c.experts_per_token} of {c.n_experts} experts, weighted by the router"
    if c.gated:
        return f"W_down ({c.activation}(W_gate x) · W_up x)"
    return f"W_down {c.activation}(W_up x{' + b' if c.mlp_bias else ''})"
