"""A party's home on a network: its file and policy, what it answers, how it drives."""
