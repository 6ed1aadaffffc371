"""Vertical learning with Flower's Message API, run by its simulation engine.

After the idea of its example: a ClientApp, the partner, answers with codes and is sent their
gradient; the ServerApp, the label owner, has the head and, here, rows of its own. A ClientApp
forgets everything between messages but its ``context.state``, so that weights and momentum go
through there. The gradient of one batch and the request for the next travel together: one exchange
a step, where the example has two.
"""

from __future__ import annotations

import argparse
import os
import time
from importlib.metadata import version

import common
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

DATA = os.environ.get("PEERS_DATA", "")

client = ClientApp()


def array(record: RecordDict, name: str) -> np.ndarray:
    return record[name]["x"].numpy()


def packed(name: str, x: np.ndarray) -> dict[str, ArrayRecord]:
    return {name: ArrayRecord({"x": Array(np.ascontiguousarray(x))})}


@client.train()
def answer(message: Message, context: Context) -> Message:
    """Step on the gradient of the last codes, where there was one; give the next."""
    torch.set_num_threads(common.THREADS)
    partner = common.Partner(common.data(DATA))
    if kept := context.state.get("model"):
        partner.encoder.load_state_dict(kept.to_torch_state_dict())
    momentum = context.state.get("momentum")
    if momentum is not None:
        for parameter, buffer in zip(
            partner.encoder.parameters(), momentum.to_torch_state_dict().values(), strict=True
        ):
            partner.optimizer.state[parameter]["momentum_buffer"] = buffer
    fields = message.content
    if "gradient" in fields:
        partner.codes(array(context.state, "last"))
        partner.step(array(fields, "gradient"))
        buffers = {
            str(index): partner.optimizer.state[parameter]["momentum_buffer"]
            for index, parameter in enumerate(partner.encoder.parameters())
        }
        context.state["momentum"] = ArrayRecord(buffers)
    context.state["model"] = ArrayRecord(partner.encoder.state_dict())
    if "rows" in fields:
        rows = array(fields, "rows")
        context.state["last"] = packed("last", rows)["last"]
        codes = partner.codes(rows)
    else:
        codes = partner.test_codes()
    return Message(RecordDict(packed("codes", codes)), reply_to=message)


def serve(given: argparse.Namespace) -> ServerApp:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(common.THREADS)
        owner = common.LabelOwner(common.data(DATA))
        rows = common.batches(len(common.data(DATA).labels))
        (node,) = _nodes(grid)
        sizes: list[int] = []
        pending: dict[str, ArrayRecord] = {}

        def ask(content: dict[str, ArrayRecord]) -> np.ndarray:
            message = Message(RecordDict(content), dst_node_id=node, message_type="train")
            (reply,) = grid.send_and_receive([message])
            if reply.has_error():
                raise RuntimeError(f"the ClientApp failed: {reply.error}")
            if "gradient" in content and "rows" in content:
                both = message_to_proto(message), message_to_proto(reply)
                sizes.append(sum(each.ByteSize() for each in both))
            return array(reply.content, "codes")

        def step(number: int) -> None:
            at = rows(number)
            codes = ask({**pending, **packed("rows", at)})
            pending.clear()
            pending.update(packed("gradient", owner.step(at, codes)))

        gone = 0.0

        def score() -> float:
            nonlocal gone
            codes = ask(dict(pending))
            pending.clear()
            gone = owner.accuracy(None)
            return owner.accuracy(codes)

        clock = common.Clock(given.seconds, given.steps, every=50, warm=1)
        clock.run(step, score)
        reported = clock.report(
            gone=gone,
            bytes_per_step=max(sizes, default=None),
            version=f"flwr {version('flwr')}, torch {torch.__version__}",
        )
        common.write(given.out, reported)

    return server


def _nodes(grid: Grid) -> list[int]:
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.1)
    return nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=1270)
    given = parser.parse_args()
    run_simulation(
        serve(given),
        client,
        num_supernodes=1,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": 1, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
