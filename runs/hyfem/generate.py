"""Writes the run files of HyFEM's section 4 and Appendix C.1, and of two data sets of our own.

    python runs/hyfem/generate.py

As written they train a small CNN for the paper's T Q steps (4096 in section 4, 2048 in C.1), a
quarter of an hour a seed on one core. ``--recipe paper`` takes the paper's ResNet-18, on a GPU.
"""

from __future__ import annotations

from pathlib import Path

CNN = '"*" = { kind = "small-cnn", channels = [8, 16], centred = true }'
MAIN = ("standalone", "pooled")
COMMON = ("fedprox", "fedavg", "standalone", "pooled")

#: Columns in four groups; who has which of them, as in Table 4; which classes are whose.
COVERTYPE = """blocks.terrain = ["Elevation", "Aspect", "Slope"]
blocks.distances = ["Horizontal_*", "Vertical_*"]
blocks.shade = ["Hillshade_*"]
blocks.ground = ["Wilderness_*", "Soil_*"]
"""
COVERTYPE_SHARES = (
    ("party-1", ("terrain", "distances", "shade"), (1, 3, 5, 7)),
    ("party-2", ("terrain", "distances", "shade"), (2, 4, 6)),
    ("party-3", ("terrain", "shade", "ground"), (1, 3, 5, 7)),
    ("party-4", ("terrain", "shade", "ground"), (2, 4, 6)),
    ("party-5", ("terrain", "shade"), (1, 3, 5, 7)),
    ("party-6", ("terrain", "shade"), (2, 4, 6)),
)


def images(blocks: str, table: str) -> str:
    """The partition of images."""
    return f'kind = "blocks"\nblocks = "{blocks}"\nassignment = "{table}"\n'


def columns() -> str:
    """The partition of covertype; each row is at one party."""
    shares = "".join(
        f'    {{ party = "{party}", blocks = {list(blocks)}, classes = {list(classes)}, '
        f"rows = {1 / 3:.4f} }},\n".replace("'", '"')
        for party, blocks, classes in COVERTYPE_SHARES
    )
    return f'kind = "blocks"\n{COVERTYPE}disjoint = true\nassignment = [\n{shares}]\n'


#: Plain steps, and with a momentum that begins anew in each round; chosen on held-out rows, see
#: benchmarks/hyfem_choose.py.
PLAIN = "learning_rate = 0.3\n"
MOMENTUM = "learning_rate = 0.05\nmomentum = 0.9\n"

# Run file -> what it is, [data], partition, rulers, rounds, rounds of the paper, extractors.
CELLS = {
    "cifar10-12": (
        "section 4: CIFAR-10 in 12 blocks, nine parties",
        'source = "cifar10_jpeg"\n',
        images("quadrants-channels", "table-2-cifar10.csv"),
        MAIN,
        (128, 128),
        CNN,
    ),
    "eurosat-12": (
        "section 4: EuroSAT in 12 blocks, nine parties; half of its images",
        'source = "eurosat_rgb_jpeg_a"\ntest = 0.2\n',
        images("quadrants-channels", "table-2-cifar10.csv"),
        MAIN,
        (128, 128),
        CNN,
    ),
    "cifar10-4": (
        "Appendix C.1: CIFAR-10 in four blocks, six parties, two blocks common",
        'source = "cifar10_jpeg"\n',
        images("quadrants", "table-4.csv"),
        COMMON,
        (64, 64),
        CNN,
    ),
    "eurosat-4": (
        "Appendix C.1: EuroSAT in four blocks, six parties, two blocks common; half of its images",
        'source = "eurosat_rgb_jpeg_a"\ntest = 0.2\n',
        images("quadrants", "table-4.csv"),
        COMMON,
        (64, 64),
        CNN,
    ),
    "fashion-4": (
        "Fashion-MNIST in four blocks, six parties as in Table 4",
        'source = "fashion_mnist"\n',
        images("quadrants", "table-4.csv"),
        MAIN,
        (16, 64),
        '"*" = "small-cnn"',
    ),
    "covertype-4": (
        "covertype, its columns in four groups, six parties as in Table 4, all with rows of their "
        "own",
        'source = "covertype"\nlabel = "Cover_Type"\ntest = 0.1\n',
        columns(),
        COMMON,
        (64, 0),
        '"*" = [32]',
    ),
}


def run_file(name: str) -> str:
    """The text of one run file."""
    what, data, partition, rulers, (rounds, of_paper), extractors = CELLS[name]
    names = ", ".join(f'"{ruler}"' for ruler in rulers)
    rate = PLAIN if name in ("fashion-4", "covertype-4") else MOMENTUM
    whole = rounds == of_paper  # a quarter of an hour: seen and saved more often
    every, saved = (rounds // 8, rounds // 8) if whole else (rounds // 4, 0)
    weighted = name in ("cifar10-12", "eurosat-12")  # each party lacks half of the classes
    if weighted:
        rate += "class_weights = true\n"
    recipe = ""
    if of_paper:
        recipe = (
            "\n[recipes.paper]\n"
            f'device = "cuda"\nhyfem.rounds = {of_paper}\n'
            "hyfem.learning_rate = 0.05\nhyfem.momentum = 0.0\n"
            'hyfem.extractors = { "*" = "resnet-18" }\n'
        ) + ("hyfem.class_weights = false\n" if weighted else "")
    return (
        f"# HyFEM, {what}.\n"
        f'method = "hyfem"\nrulers = [{names}]\nseeds = [0, 1]\n'
        f"evaluate_every = {every}\ncheckpoint_every = {saved}\n\n"
        f"[data]\n{data}\n[data.partition]\n{partition}\n"
        f"[hyfem]\nrounds = {rounds}\nlocal_steps = 32\nbatch_size = 64\n{rate}"
        f"widths = [64]\n\n[hyfem.extractors]\n{extractors}\n{recipe}"
    )


def all_files() -> dict[str, str]:
    """File name -> text."""
    return {f"{name}.toml": run_file(name) for name in CELLS}


if __name__ == "__main__":
    for file, text in all_files().items():
        (Path(__file__).parent / file).write_text(text)
