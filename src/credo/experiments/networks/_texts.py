"""Texts for language models: Penn Treebank, part of it, or a Markov chain."""

from __future__ import annotations

import torch

from credo.datasets.files import Words, penn_treebank


def load(hold_out: bool = False) -> Words:
    """Penn Treebank; with ``hold_out`` the validation part takes the place of the test part."""
    words = penn_treebank()
    return Words(words.train, words.valid, words.valid, words.vocabulary) if hold_out else words


def text_of(smoke: bool, seed: int, tokens: int | None = None, vocabulary: int | None = None) -> Words:
    """The text of a budget: a Markov chain for a smoke run, else Penn Treebank, shortened if sizes are given.

    Args:
        smoke: whether the run may use no files.
        seed: of the Markov chain.
        tokens: number of training tokens; ``None``: all.
        vocabulary: number of words; ``None``: all.
    """
    if smoke:
        return synthetic_text(seed)
    words = load()
    return words if tokens is None or vocabulary is None else shorten(words, tokens, vocabulary)


def shorten(words: Words, tokens: int, vocabulary: int) -> Words:
    """The first ``tokens`` of the training part and a tenth as many of the others, with the most frequent words.

    Args:
        words: the text; all other words become ``<unk>``.
        tokens: number of training tokens.
        vocabulary: number of words, ``<unk>`` included.
    """
    train = words.train[:tokens]
    unknown = words.vocabulary.index("<unk>")
    counts = torch.bincount(train, minlength=len(words.vocabulary))
    counts[unknown] = len(train)
    kept = counts.argsort(descending=True, stable=True)[:vocabulary]
    index = torch.zeros(len(words.vocabulary), dtype=torch.int64)  # the first of the kept words is <unk>
    index[kept] = torch.arange(vocabulary)
    names = tuple(words.vocabulary[i] for i in kept.tolist())
    valid, test = words.valid[: tokens // 10], words.test[: tokens // 10]
    return Words(index[train], index[valid], index[test], names)


def synthetic_text(seed: int, tokens: int = 1500, vocabulary: int = 12) -> Words:
    """A Markov chain of words, each followed by one of three, for a smoke run."""
    generator = torch.Generator().manual_seed(seed)
    follows = torch.stack([torch.randperm(vocabulary, generator=generator)[:3] for _ in range(vocabulary)])
    total, word = tokens + 2 * (tokens // 5), 0
    text = []
    for choice in torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), total, True, generator=generator).tolist():
        word = int(follows[word, choice])
        text.append(word)
    train, valid, test = torch.tensor(text).split([tokens, tokens // 5, tokens // 5])
    return Words(train, valid, test, tuple(f"w{i}" for i in range(vocabulary)))
