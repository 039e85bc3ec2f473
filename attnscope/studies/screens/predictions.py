"""What a model predicts: the most probable tokens of each place."""

from collections.abc import Iterator

from attnscope.findings.predictions import Prediction
from attnscope.findings.run import Report, TextReport
from attnscope.views.numbers import formatted
from attnscope.views.parts import GAP, Column, Table, Text, ViewPart, paragraph
from attnscope.views.spans import NEW, Span, Spans, headed, ours, token_span

GENERATED = (
    paragraph(headed("generated", "  each token is the most probable one")),
    paragraph(ours(f"{'position':>8} {'probability':>12} {'next best':>10}  token", "caption")),
)


def predictions(report: Report, text: TextReport) -> Iterator[ViewPart]:
    """Present the predictions of a text."""
    for prediction in text.predictions:
        yield GAP
        yield _heading(report, text, prediction)
        tokens = [(Span(token.text, "", "token"),) for token in prediction.tokens]
        shares = [token.probability for token in prediction.tokens]
        columns = [
            Column("probability", [percent(share) for share in shares]),
            Column("logit", [formatted(token.logit, "z.2f") for token in prediction.tokens], "dim"),
        ]
        yield Table("token", columns, labels=tokens, bars=shares)


def continuation(text: TextReport) -> Iterator[ViewPart]:
    """Present the generated tokens by their names in the text, each with its probability."""
    yield GAP
    count = len(text.generated)
    caption = f"  1 token (marked {NEW}), the most probable one"
    if count != 1:
        caption = f"  {count} tokens (marked {NEW}), each the most probable one"
    yield paragraph(headed("generated", caption))
    wide = len(str(len(text.tokens) - 1))
    shares = list[float]()
    seconds = list[str]()
    tokens = list[Spans]()
    for prediction in text.generated:
        best, *others = prediction.tokens
        position = prediction.position + 1
        tokens.append((Span(f"{position:>{wide}} "), token_span(text.tokens, position)))
        shares.append(best.probability)
        seconds.append(percent(others[0].probability) if others else "")
    columns = [
        Column("probability", list(map(percent, shares))),
        Column("next best", seconds, "dim"),
    ]
    yield Table("token", columns, labels=tokens, bars=shares)


def generated_row(prediction: Prediction) -> Text:
    """Present a generated token in one line under `GENERATED`."""
    shares = [percent(token.probability) for token in prediction.tokens[:2]]
    numbers = (
        f"{prediction.position + 1:>8} {shares[0]:>12} {shares[1] if len(shares) > 1 else '':>10}  "
    )
    return Text(((Span(numbers), Span(prediction.tokens[0].text, "bold", "token")),))


def _heading(report: Report, text: TextReport, prediction: Prediction) -> Text:
    """Present the predicted position, and the mask if it is not the one that is shown."""
    position_span = Span(f"{prediction.position} ")
    token = token_span(text.tokens, prediction.position)
    where = Span(" after " if prediction.kind == "next" else " in place of ", "caption")
    own = report.mask.what_if == "same-scores"
    under = (Span(", under the model's own mask", "caption"),) if own else ()
    blank: Spans = ()
    if any(" " in token.text for token in prediction.tokens):
        # as tokens spell it
        blank = Span("; ", "caption"), Span(" ", "caption", "token"), Span(" is a space", "caption")
    return paragraph((Span("prediction", "bold"), where, position_span, token, *under, *blank))


def percent(share: float) -> str:
    """Format a probability; one that would round to 0.0 is shown as less."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %"
