"""A party's site on a network: its file and policy, what it answers, how it drives."""
