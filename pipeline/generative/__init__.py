"""Generative recommendation: items as short sequences of codes, and the trie of all of them."""
