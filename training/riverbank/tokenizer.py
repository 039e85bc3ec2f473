"""Train a WordPiece tokenizer whose words are exactly the teacher's words.

Lower case: at 8,192 pieces, "The" beside "the" would cost places that rarer words need, and offsets still point into
the text as it was typed. No [CLS] and no [SEP]: every token that the model sees is a piece of the text.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from training.riverbank.corpus import Synset

PAD, UNK, MASK = "[PAD]", "[UNK]", "[MASK]"
SPECIALS = (PAD, UNK, MASK)
TYPOGRAPHIC = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-"}
EXAMPLE_REPEATS = 4
GENERAL_WORDS = 12_000
GENERAL_COUNT = 300_000
PRINTABLE = [chr(code) for code in range(33, 127) if not chr(code).isupper()]


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train the pieces. BertNormalizer and BertPreTokenizer split words as the teacher (uncased BERT) does."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK, max_input_chars_per_word=100))
    curly = [normalizers.Replace(typed, plain) for typed, plain in TYPOGRAPHIC.items()]
    tokenizer.normalizer = normalizers.Sequence(
        [*curly, normalizers.BertNormalizer(lowercase=True)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=PRINTABLE,
        limit_alphabet=len(PRINTABLE),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    # The trainer numbers equally frequent pieces differently in every run, so they are numbered again by their names.
    names = [*SPECIALS, *sorted(set(tokenizer.get_vocab()) - set(SPECIALS))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer.model = models.WordPiece(vocabulary, unk_token=UNK, max_input_chars_per_word=100)
    return tokenizer


def vocabulary_text(synsets: list[Synset], teacher_vocabulary: list[str]) -> Iterator[str]:
    """Text from which the pieces are trained: definitions, examples repeated, and general words.

    Definitions alone would spend the pieces on genera and stems and split "yesterday". So the teacher's whole
    words, which its vocabulary lists from frequent to rare, are added as often as Zipf's law says (count / rank).
    """
    for synset in synsets:
        yield synset.definition
        yield from EXAMPLE_REPEATS * synset.examples
    words = [
        word for word in teacher_vocabulary if word.isascii() and word.isalpha() and len(word) > 1
    ]
    for rank, word in enumerate(words[:GENERAL_WORDS], start=1):
        yield " ".join([word] * (GENERAL_COUNT // rank))


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read `tokenizer.json` from a folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
