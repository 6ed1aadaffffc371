"""requirements.lock and requirements-dev.lock: constraints.txt with the SHA-256 of every file.

    python .ci/lock.py            write both anew (make lock): asks pip what it would install
    python .ci/lock.py --fits     whether they fit here: exits with 0, or with 1 and a sentence

The first has what Dovetail runs with, the second what its developers need besides; both have what
builds it. A hash is that of the file for Linux on x86-64 and CPython 3.11; elsewhere files are
others, and constraints.txt alone says which versions. PyTorch is its build for CPUs, which needs no
other package.
"""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLAIN, DEV = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
BUILDS = ("hatchling", "editables")
HERE = ("Linux", "x86_64", "CPython", "3.11")


def main() -> int:
    if "--fits" in sys.argv:
        why = _why_not()
        if why:
            print(f"{why}: constraints.txt says the versions, no hash is checked", file=sys.stderr)
        return 1 if why else 0
    asked = [*_pip("--report", "-"), "--ignore-installed", "-c", ROOT / "constraints.txt"]
    done = subprocess.run(
        [*asked, "-e", f"{ROOT}[dev]", *BUILDS], stdout=subprocess.PIPE, check=True
    )
    report = json.loads(done.stdout)
    installed = {_normal(each["metadata"]["name"]): each for each in report["install"]}
    editable = next(name for name, each in installed.items() if "dir_info" in each["download_info"])
    plain = _needed(installed, [editable, *BUILDS])
    for path, names in ((PLAIN, plain), (DEV, installed.keys())):
        lines = ["# Written by make lock: for Linux on x86-64, CPython 3.11."]
        for name in sorted(set(names) - {editable}):
            file = installed[name]["download_info"]["archive_info"]["hashes"]["sha256"]
            number = installed[name]["metadata"]["version"].partition("+")[0]  # torch's +cpu
            lines.append(f"{name}=={number} --hash=sha256:{file}")
        path.write_text("\n".join(lines) + "\n")
        print(f"{path.name}: {len(lines) - 1} packages")
    return 0


def _why_not() -> str:
    """Why the hashes do not hold here; "" if they do."""
    number = ".".join(platform.python_version_tuple()[:2])
    here = (platform.system(), platform.machine(), platform.python_implementation(), number)
    if here != HERE:
        return f"requirements.lock is for {' '.join(HERE)}, and this is {' '.join(here)}"
    torch = next(line for line in PLAIN.read_text().splitlines() if line.startswith("torch=="))
    asked = [*_pip(), "--require-hashes", "-r", "/dev/stdin"]
    done = subprocess.run(asked, input=torch.encode(), stderr=subprocess.DEVNULL)
    if done.returncode:
        return "pip does not find PyTorch's build for CPUs here"
    return ""


def _pip(*options: str) -> list[str | Path]:
    quiet = ("-q", "--disable-pip-version-check", "--dry-run")
    deps = () if "--report" in options else ("--no-deps", "--ignore-installed")
    return [sys.executable, "-m", "pip", "install", *quiet, *deps, *options]


def _needed(installed: dict, names: list[str]) -> set[str]:
    """These and all that they need, without extras of Dovetail's own."""
    from pip._vendor.packaging.requirements import Requirement

    left = [(name, "") for name in names]
    seen = set()
    while left:
        name, extra = left.pop()
        if (name, extra) in seen or name not in installed:
            continue
        seen.add((name, extra))
        for text in installed[name]["metadata"].get("requires_dist", []):
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                left += [(_normal(needed.name), each) for each in ("", *needed.extras)]
    return {name for name, _ in seen}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
