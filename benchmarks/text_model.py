"""English-looking text from a word model that compresses like the web's.

The model is a Zipf-Mandelbrot vocabulary of real function words and invented
content words, phrases that recur across documents, spans that recur within one,
sentences and paragraphs. Its numbers were fitted to real C4 text.
"""

import functools

import numpy as np

_SLOTS = 1 << 22  # Resolution of the sampling table.

# The head of the vocabulary in descending order of frequency.
_FUNCTION_WORDS = """the and to of a in is for that with you on are I your as be or
it at have from was can this will by an not we our all has more but they one their
if about which when so also up there his what out who my time any do other were
been some like new get these would no just how than its he had into make only over
her people them may most after me us use first where work need even she many much
help through well then should because very way see two good want best know 2 great
available right each before home those day year years while made could take find
such both down own being between must does 1 3 look using 10 business here back
information service 5 too every same around part place really system full 2018
including without long still last under life free few high world might next 2017
family different start small since during keep come always never used top 4 give
something 20 don't it's you're we're that's I'm can't 2016 am him did think another
set off offer important 100 2019 little possible found less online"""


def _parts(text):
    return ["" if part == "-" else part for part in text.split()]


# Parts of invented words, the frequent ones named more than once; "-" is nothing.
_PREFIXES = _parts("re in con de com pro un ex per dis sub over en inter")
_ONSETS = _parts("""b b c c c d d f f g h h l l l m m m n n n p p p r r r r s s s t t
t t v v w w br ch cr cl fl fr gr pl pr sh sp st st th tr j k""")
_NUCLEI = _parts("a a a e e e e e i i i o o o u a e i o ea ou ai ee io")
_CODAS = _parts(
    "- - - n n r r s t t l l d m c p nd nt st ck ll ss rt ng te re ne le se ve"
)
_SUFFIXES = _parts("""- s s s s ed ed ed ing ing ing er er ly ly tion tion es al ment
able ive ity ous ers ings ic ate ence ance ist ful ness""")


# Fitted to the compression of C4: how many words and phrases of two to six words there
# are, the exponents of their frequency by rank, Mandelbrot's addition to the rank, the
# share of draws that give a phrase, how likely a span seen earlier in the same document
# starts again at a draw, and the mean number of draws in such a span.
_WORDS, _PHRASES = 90_000, 60_000
_ZIPF_EXPONENT, _ZIPF_SHIFT = 1.02, 3.0
_PHRASE_SHARE, _PHRASE_EXPONENT = 0.06, 0.8
_REPEAT_STARTS, _REPEAT_DRAWS = 0.1, 3.0


# How a draw is spelled at its place in the sentence.
_PLAIN, _OPENING, _COMMA, _PERIOD, _PARAGRAPH = range(5)


def _invent_words(rng, count):
    """Returns `count` distinct words, the function words first."""
    words = dict.fromkeys(_FUNCTION_WORDS.split())

    def pick(parts):
        return parts[int(rng.random() * len(parts))]

    while len(words) < count:
        kind = rng.random()
        if kind < 0.04:
            words[str(rng.integers(10, 10 ** int(rng.integers(2, 6))))] = None
            continue
        # Rarer words are longer: syllables grow with the logarithm of the rank.
        syllables = 1 + rng.binomial(2, min(0.6, 0.05 * np.log(len(words))))
        word = "".join(pick(_ONSETS) + pick(_NUCLEI) for _ in range(syllables))
        if rng.random() < 0.2:
            word = pick(_PREFIXES) + word
        word += pick(_CODAS)
        if rng.random() < 0.5:
            word += pick(_SUFFIXES)
        words[word.capitalize() if kind > 0.85 else word] = None
    return list(words)[:count]


def _zipf(count, exponent, shift):
    """Returns float64 [count] probabilities by rank."""
    weights = (np.arange(count) + 1.0 + shift) ** -exponent
    return weights / weights.sum()


@functools.cache
class Lexicon:
    """Words and phrases, the same whatever the seed of the text, and how often each is.

    Attributes:
        words: Without the phrases, for addresses.
        count: Of words and phrases.
        spellings: For lexeme l in form f, the bytes at f * count + l.
        slots: uint32 [_SLOTS] lexemes, each as often as it is likely.
        mean_bytes: Expected length of a draw, with its separator.
    """

    def __init__(self):
        rng = np.random.default_rng(20190425)
        self.words = _invent_words(rng, _WORDS)
        word_odds = _zipf(_WORDS, _ZIPF_EXPONENT, _ZIPF_SHIFT)
        phrase_odds = _zipf(_PHRASES, _PHRASE_EXPONENT, 0.0)
        lengths = rng.integers(2, 7, _PHRASES)
        picks = rng.choice(_WORDS, int(lengths.sum()), p=word_odds).tolist()
        lexemes, start = [*self.words], 0
        for length in lengths.tolist():
            phrase = picks[start : start + length]
            lexemes.append(" ".join([self.words[pick] for pick in phrase]))
            start += length
        self.count = len(lexemes)
        shares = word_odds * (1 - _PHRASE_SHARE), phrase_odds * _PHRASE_SHARE
        odds = np.concatenate(shares)
        edges = np.rint(np.cumsum(odds) * _SLOTS).astype(np.int64)
        numbers = np.arange(self.count, dtype=np.uint32)
        self.slots = np.repeat(numbers, np.diff(edges, prepend=0))
        self.mean_bytes = float(np.dot(odds, [len(each) + 1 for each in lexemes]))
        # Form by form: what is drawn most often lies close together in memory.
        plain = [lexeme.encode() for lexeme in lexemes]
        opening = [(lexeme[0].upper() + lexeme[1:]).encode() for lexeme in lexemes]
        forms = (plain, b" "), (opening, b" "), (plain, b", "), (plain, b". ")
        self.spellings = [
            word + end for words, end in (*forms, (plain, b".\n")) for word in words
        ]


def _draw_lexemes(rng, lexicon, lengths):
    """Returns int64 [sum(lengths)] lexemes with spans repeated within documents."""
    total = int(lengths.sum())
    fresh = lexicon.slots[rng.integers(0, len(lexicon.slots), total, dtype=np.uint32)]
    position = np.arange(total)
    document_start = np.repeat(np.cumsum(lengths) - lengths, lengths)
    # A span begins where the dice say so and copies from an earlier place in its
    # document; position 0 stands for the span before the first.
    begins = rng.random(total, np.float32) < _REPEAT_STARTS
    begins &= position > document_start
    starts = np.concatenate([[0], np.flatnonzero(begins)])
    span = np.cumsum(begins)
    span_ends = starts + rng.geometric(1 / _REPEAT_DRAWS, len(starts))
    room = starts - document_start[starts]
    back = 1 + (rng.random(len(starts)) * room).astype(np.int64)
    copies = (position < span_ends[span]) & (starts[span] > document_start)
    origin = np.where(copies, position - back[span], position)
    # A copy of a copy: follow the arrows until each ends at a fresh draw.
    while True:
        further = origin[origin]
        if np.array_equal(further, origin):
            return fresh[origin].astype(np.int64)
        origin = further


def _punctuate(rng, lexemes, lengths, lexeme_count):
    """Returns int64 [n] indices into the spellings: sentences of about 14 draws."""
    dice = rng.random(len(lexemes), np.float32)
    forms = np.full(len(lexemes), _PLAIN)
    forms[dice < 0.125] = _COMMA
    forms[dice < 0.072] = _PERIOD
    forms[dice < 0.014] = _PARAGRAPH
    ends = np.cumsum(lengths) - 1
    forms[ends] = _PERIOD
    opens = np.ones(len(forms), bool)
    opens[1:] = forms[:-1] >= _PERIOD
    forms[opens] = _OPENING
    forms[ends] = _PERIOD
    return forms * lexeme_count + lexemes


def write_documents(rng, text_bytes):
    """Yields documents.

    Args:
      rng: the source of chance.
      text_bytes: float64 [n], wished lengths; a document has its length to within
        the luck of its words.
    """
    lexicon = Lexicon()
    lengths = np.maximum(1, np.rint(text_bytes / lexicon.mean_bytes)).astype(np.int64)
    lexemes = _draw_lexemes(rng, lexicon, lengths)
    keys = _punctuate(rng, lexemes, lengths, lexicon.count).tolist()
    start = 0
    for end in np.cumsum(lengths).tolist():
        spellings = map(lexicon.spellings.__getitem__, keys[start:end])
        yield b"".join(spellings)[:-1]
        start = end
