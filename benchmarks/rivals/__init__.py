"""Other ways to keep a partner's help, each a page written from its paper or published code.

FALSE-VFL (arXiv:2505.11035) is not among them: no published code of it was found, and of its text
only abstract and introduction were at hand, which do not say how it trains.
"""
