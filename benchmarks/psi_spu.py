"""Private set intersection by SecretFlow's spu, beside Dovetail's: 1,000,000 ids at each party.

    python -m venv spu && spu/bin/pip install spu==0.9.5    # Python 3.10 or 3.11, numpy below 2
    python -m benchmarks.psi_spu --spu-python spu/bin/python [--ids 1000000]

spu's parties are two processes that are linked over this machine's loopback and read ids from CSV
files; Dovetail's are both in one process (``benchmarks.many_ids``). Half of the ids are shared, and
both parties learn which. Processor time is of both parties together, from ids to intersection.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _results
from benchmarks.many_ids import measured

PARTY = """
import json, resource, sys
import spu.libspu as libspu
import spu.psi as psi
folder, rank, protocol, ports = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
link = libspu.link.Desc()
for index, port in enumerate(ports):
    link.add_party(f"party{index}", f"127.0.0.1:{port}")
context = libspu.link.create_brpc(link, rank)
ecdh = psi.EcdhParams(curve=psi.EllipticCurveType.CURVE_25519)
config = psi.PsiExecuteConfig(
    protocol_conf=psi.PsiProtocolConfig(
        protocol=getattr(psi.PsiProtocol, "PROTOCOL_" + protocol),
        receiver_rank=0, broadcast_result=True, ecdh_params=ecdh,
    ),
    input_params=psi.InputParams(
        path=f"{folder}/ids{rank}.csv", selected_keys=["id"], keys_unique=True
    ),
    output_params=psi.OutputParams(path=f"{folder}/shared{rank}.csv"),
)

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

before = used()
done = psi.psi_execute(config, context)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"shared": done.intersection_count, "s": used() - before, "MiB": peak}))
"""


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def by_spu(python: str, num: int, protocol: str) -> dict[str, Any]:
    """Both parties of one intersection."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(2):
            ids = range(rank * num // 2, rank * num // 2 + num)
            lines = "".join(f"customer-{number:09d}\n" for number in ids)
            (Path(folder) / f"ids{rank}.csv").write_text(f"id\n{lines}")
        ports = [free_port(), free_port()]
        parties = [
            subprocess.Popen(
                [python, "-c", PARTY, folder, str(rank), protocol, *ports],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(2)
        ]
        lines_of = [party.communicate()[0].splitlines() for party in parties]
    replies = [json.loads(next(each for each in lines if each[:1] == "{")) for lines in lines_of]
    assert all(each["shared"] == num - num // 2 for each in replies), replies
    return {
        "what": f"spu, {protocol}",
        "ids of each": num,
        "processor s, both": sum(each["s"] for each in replies),
        "MiB a party, libraries among it": max(each["MiB"] for each in replies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spu-python", required=True, help="an interpreter that has spu")
    parser.add_argument("--ids", type=int, default=1_000_000)
    given = parser.parse_args()
    rows = [by_spu(given.spu_python, given.ids, protocol) for protocol in ("RR22", "ECDH")]
    ours = measured(given.ids, "X25519")
    rows.append(
        {
            "what": "Dovetail, both in one process",
            "ids of each": given.ids,
            "processor s, both": ours["processor s, both"],
            "MiB a party, libraries among it": ours["MiB before"] + ours["MiB more, both"],
        }
    )
    _results.write("psi_spu", "Private set intersection: spu 0.9.5 and Dovetail", rows)


if __name__ == "__main__":
    main()
