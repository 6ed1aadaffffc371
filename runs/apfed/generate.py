"""Writes the run files of APFed's Table 2: 4 data sets x 5 settings x 4 methods.

    python runs/apfed/generate.py

Each file has the paper's recipe, and below [recipes] others for two cores:
``cpu`` trains on all rows with larger steps and fewer epochs, ``subset`` on 10,000 rows and with
three seeds. Choose one with ``dovetail train FILE --recipe cpu``.
"""

from __future__ import annotations

from pathlib import Path

SETTINGS = ((2, 1), (2, 2), (3, 1), (3, 2), (3, 3))

TITLES = {
    "alone": "SingleVL: the active party alone",
    "tvfl": "TVFL-0, -A and -R: classic vertical learning, partners gone",
    "apfed-r": "APFed-R: passive parties reconstruct",
    "apfed-c": "APFed-C: passive parties contrast",
}

# source, encoder, head, test rows, recipe "cpu", recipe "subset"
SETS = {
    "mnist": ("mnist", "table-3", 256, "", (0.02, 3), (0.02, 8)),
    "fmnist": ("fashion_mnist", "table-3", 256, "", (0.02, 5), (0.02, 8)),
    "cifar10": ("cifar10_jpeg", "table-4", 50, "", (0.01, 13), (0.01, 20)),
    "cifar100": ("cifar100_test10k_jpeg", "table-4", 50, "test = 0.2\n", (0.01, 30), (0.01, 30)),
}

NOTES = {
    "cifar10": (
        "# The images are a JPEG copy of CIFAR-10: expect slightly less than of the original.\n"
    ),
    "cifar100": (
        "# Only the 9999 images of CIFAR-100's test half are here: a fixed 80 / 20 split of them\n"
        "# stands in for the data set, so figures are far below the paper's.\n"
    ),
}


def run_file(name: str, views: int, active: int, method: str) -> str:
    """The text of one cell's run file."""
    source, encoder, head, test, (cpu_rate, cpu_epochs), (rate, epochs) = SETS[name]
    helped = method.startswith("apfed")
    passive = f'\n[passive]\nencoder = "{encoder}"\nlearning_rate = 1e-3\n' if helped else ""

    def recipe(title: str, learning_rate: float, num_epochs: int, more: str = "") -> str:
        lines = f"\n[recipes.{title}]\n{more}apfed.learning_rate = {learning_rate}\n"
        lines += f"apfed.epochs = {num_epochs}\n"
        if helped:
            lines += f"passive.learning_rate = {learning_rate}\n"
        if method == "apfed-c":
            lines += "apfed.projection = 64\n"
        return lines

    return (
        f"# APFed, Table 2: {name} {views}-{active}. {TITLES[method]}.\n"
        + NOTES.get(name, "")
        + f'method = "{method}"\nseeds = [0, 1, 2, 3, 4]\nevaluate_every = 10\n\n'
        + f'[data]\nsource = "{source}"\n{test}'
        + f'partition = {{ kind = "strips", views = {views}, active = {active} }}\n\n'
        + "# The paper's recipe; its number of epochs is that of the authors' code.\n"
        + f'[apfed]\nencoder = "{encoder}"\nhead = [{head}]\ndropout = 0.5\n'
        + "trade_off = 1.0\nepochs = 300\nbatch_size = 64\nlearning_rate = 1e-3\n"
        + "momentum = 0.9\nweight_decay = 1e-4\n"
        + passive
        + recipe("cpu", cpu_rate, cpu_epochs, "seeds = [0]\nevaluate_every = 1\n")
        + recipe(
            "subset",
            rate,
            epochs,
            "seeds = [0, 1, 2]\nevaluate_every = 0\n" + ("" if test else "data.rows = 10000\n"),
        )
    )


def all_files() -> dict[str, str]:
    """File name -> text, of every cell."""
    return {
        f"{name}-{views}-{active}-{method}.toml": run_file(name, views, active, method)
        for name in SETS
        for views, active in SETTINGS
        for method in TITLES
    }


if __name__ == "__main__":
    for file, text in all_files().items():
        (Path(__file__).parent / file).write_text(text)
