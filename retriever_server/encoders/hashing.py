"""Feature hashing (Weinberger et al. 2009) of words and their character n-grams."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from retriever_server.encoders.record import EncoderRecord, Vectors
from retriever_server.text import fold

NGRAMS = (3, 4, 5)
LONGEST_WORD = 64  # characters; what a longer run of letters holds beyond is left out, so that its pieces stay few
WORD_WEIGHT = 3.0  # a whole word in common counts more than a shared piece of one


class HashingEncoder:
    """Feature hashing of words and character 3- to 5-grams; needs no weights and gives the same vectors everywhere."""

    def __init__(self, record: EncoderRecord) -> None:
        self.record = record

    def encode(self, texts: Sequence[str]) -> Vectors:
        """See Encoder.encode."""
        vectors = np.empty((len(texts), self.record.dimension), dtype=np.float32)
        for position, text in enumerate(texts):
            vectors[position] = hash_ngrams(text, self.record.dimension)
        return vectors


def hash_ngrams(text: str, dimension: int) -> NDArray[np.float32]:
    """Return the signed hash counts of `text`, shape (dimension,); repeated words count 1 + log(repeats)."""
    vector = np.zeros(dimension, dtype=np.float32)
    words = (run[:LONGEST_WORD] for run in re.findall(r"\w+", fold(text)))
    for word, repeats in sorted(Counter(words).items()):
        buckets, weights = _features(word, dimension)
        np.add.at(vector, buckets, weights * np.float32(1 + np.log(repeats)))
    return vector


@lru_cache(maxsize=200_000)
def _features(word: str, dimension: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    padded = f"<{word}>"
    pieces = [(padded, WORD_WEIGHT)]
    pieces += [(padded[i : i + n], 1.0) for n in NGRAMS for i in range(len(padded) - n + 1)]
    hashes = [zlib.crc32(piece.encode()) for piece, _ in pieces]
    signs = [1.0 if value & 0x8000_0000 else -1.0 for value in hashes]
    weights = np.array([sign * weight for sign, (_, weight) in zip(signs, pieces, strict=True)], dtype=np.float32)
    # longer words have more pieces; each word gets the same total weight
    return np.array([value % dimension for value in hashes]), weights / np.linalg.norm(weights)
