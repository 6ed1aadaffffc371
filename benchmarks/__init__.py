"""Speed and memory, as ratios within one run; each script writes its figures to results/."""
