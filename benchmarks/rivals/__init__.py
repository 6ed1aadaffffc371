"""Other ways to keep a partner's help, each a page written from its paper's description."""
