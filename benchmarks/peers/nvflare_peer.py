"""Split learning of two sites by NVIDIA FLARE's own workflow, run by its simulator.

The workflow (``SplitNNController``, ``SplitNNLearnerExecutor``) is NVFlare's; the learner is ours:
site-1, the partner, sends codes to site-2, the label owner, as an auxiliary message through the
server, and gets their gradient as its reply. One exchange a step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import nvflare
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.learner_spec import Learner
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.abstract.shareable_generator import ShareableGenerator
from nvflare.app_common.executors.splitnn_learner_executor import SplitNNLearnerExecutor
from nvflare.app_common.workflows.splitnn_workflow import SplitNNConstants, SplitNNController
from nvflare.fuel.utils import fobs
from nvflare.job_config.api import FedJob

sys.path.insert(0, str(Path(__file__).parent))

PARTNER, OWNER = "site-1", "site-2"
TIMEOUT_S = 60.0


class NoModel(LearnablePersistor):
    """Each site makes its own network; the server has none."""

    def load(self, fl_ctx: FLContext) -> ModelLearnable:
        return make_model_learnable({}, {})

    def save(self, learnable: ModelLearnable, fl_ctx: FLContext) -> None:
        pass


class Empty(ShareableGenerator):
    """What the server tells the sites before they begin: nothing."""

    def learnable_to_shareable(self, learnable: ModelLearnable, fl_ctx: FLContext) -> Shareable:
        return Shareable()

    def shareable_to_learnable(self, shareable: Shareable, fl_ctx: FLContext) -> ModelLearnable:
        return make_model_learnable({}, {})


def packed(arrays: dict, meta: dict) -> Shareable:
    return DXO(data_kind=DataKind.WEIGHTS, data=arrays, meta=meta).to_shareable()


class SplitLearner(Learner):
    """Either site, by its name."""

    def __init__(self, here: str, data: str, out: str, seconds: float, steps: int) -> None:
        super().__init__()
        self.here, self.data, self.out, self.seconds, self.steps = here, data, out, seconds, steps

    def initialize(self, parts: dict, fl_ctx: FLContext) -> None:
        sys.path.insert(0, self.here)
        import common

        torch.set_num_threads(common.THREADS)
        self.engine, self.site = fl_ctx.get_engine(), fl_ctx.get_identity_name()
        data = common.Data(self.data)
        self.rows = common.batches(len(data.labels))
        if self.site == PARTNER:
            self.partner = common.Partner(data)
        else:
            self.owner = common.LabelOwner(data)
            topic = SplitNNConstants.TASK_TRAIN_LABEL_STEP
            self.engine.register_aux_message_handler(topic, self._answer)

    def init_model(
        self, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        return make_reply(ReturnCode.OK)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        asked = from_shareable(request)
        step, codes = asked.meta["step"], asked.data["codes"]
        if step >= 0:
            return packed({"gradient": self.owner.step(self.rows(step), codes)}, {})
        scores = {"with": self.owner.accuracy(codes), "gone": self.owner.accuracy(None)}
        return packed({}, scores)

    def _ask(self, step: int, codes: object, fl_ctx: FLContext) -> DXO:
        request = packed({"codes": codes}, {"step": step})
        topic = SplitNNConstants.TASK_TRAIN_LABEL_STEP
        replies = self.engine.send_aux_request(
            targets=[OWNER], topic=topic, request=request, timeout=TIMEOUT_S, fl_ctx=fl_ctx
        )
        reply = replies[OWNER]
        if reply.get_return_code() != ReturnCode.OK:
            raise RuntimeError(f"{OWNER} answered {reply.get_return_code()}")
        if step == 0:  # every step's messages have the same size
            self.sent = len(fobs.dumps(dict(request)))
            self.received = len(fobs.dumps(dict(reply)))
        return from_shareable(reply)

    def train(self, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        import common

        if self.site != PARTNER:
            return make_reply(ReturnCode.OK)
        gone = 0.0

        def step(number: int) -> None:
            codes = self.partner.codes(self.rows(number))
            self.partner.step(self._ask(number, codes, fl_ctx).data["gradient"])

        def score() -> float:
            nonlocal gone
            scores = self._ask(-1, self.partner.test_codes(), fl_ctx).meta
            gone = scores["gone"]
            return scores["with"]

        clock = common.Clock(self.seconds, self.steps, every=50, warm=10)
        clock.run(step, score)
        reported = clock.report(
            gone=gone,
            bytes_per_step=self.sent + self.received,
            version=f"nvflare {nvflare.__version__}, torch {torch.__version__}",
        )
        common.write(self.out, reported)
        return make_reply(ReturnCode.OK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=1270)
    given = parser.parse_args()
    job = FedJob(name="split")
    job.to_server(NoModel(), id="persistor")
    job.to_server(Empty(), id="shareable_generator")
    job.to_server(SplitNNController(num_rounds=given.steps, task_timeout=60))
    for site in (PARTNER, OWNER):
        here = str(Path(__file__).resolve().parent)
        learner = SplitLearner(here, given.data, given.out, given.seconds, given.steps)
        job.to(learner, site, id="learner")
        tasks = [SplitNNConstants.TASK_INIT_MODEL, SplitNNConstants.TASK_TRAIN]
        job.to(SplitNNLearnerExecutor(learner_id="learner"), site, tasks=tasks)
    with tempfile.TemporaryDirectory() as workspace:
        job.simulator_run(workspace, threads=2, log_config="concise")


if __name__ == "__main__":
    main()
