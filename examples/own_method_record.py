"""FedSGD at parity: what ``inspect``, ``audit``, ``search`` and a proposal ask of a method."""

import numpy as np
from own_method import FedSgd, Gradient

from dovetail import data as dd
from dovetail.methods.facets.audited import Audited, Holding, Scene, Weights, candidates
from dovetail.methods.facets.declared import Keys, Proposed
from dovetail.methods.facets.fits import Fit, Fits, MessageSize, everyone_labels, no, parameters


class SgdFits(Fits):  # dovetail inspect: which parties it is for, and what it would send
    title = "FedSGD"

    def fit(self, situation):
        common = situation.blocks.get(tuple(situation.names), ())
        wrong = everyone_labels(situation, self.title)
        if wrong or not common:
            return no("fedsgd", *(wrong or ["no column is at every party"]))
        width, outputs = situation.width(common), situation.num_outputs
        size = 4 * parameters(width, (16,), outputs)
        what = f"a network of {width}-16-{outputs} in float32"
        sizes = [
            MessageSize(name, "coordinator", "round", size, size, what) for name in situation.names
        ]
        reason = f"yes: every party has labels, and {len(common)} columns are at all of them"
        return Fit("fedsgd", True, reason, "dovetail train RUN --set method=fedsgd", tuple(sizes))


class Reading:  # dovetail audit: what a message says, as its receiver can see it
    def __init__(self):
        self.rounds = {}

    def __call__(self, driver, party, request, answer):
        if isinstance(answer, Gradient):
            self.rounds[party] = number = self.rounds.get(party, 0) + 1
            before = request.weights_P.clone()
            after = before - answer.gradient_P
            yield Weights(driver, party, number, {"common": before}, {"common": after})


class SgdAudited(Audited):  # dovetail audit: who has what, by which attacks are scored
    def scene(self, training):
        parties, rows = {}, {}
        for name, data in training.party_data.items():
            parties[name] = Holding(data.x_NF, data.features, data.labels_N)
            sides = [(data.x_NF, data.labels_N), data.test or (data.x_NF[:0], data.labels_N[:0])]
            rows[name] = [
                dd.PartyData(name, np.arange(len(y)), {data.block: x}, y) for x, y in sides
            ]
        return Scene(data.task, parties, {}, Reading(), candidates(rows))


class SgdKeys(Keys):  # dovetail train with [search]: what is tried where no key is named
    def searched(self, run):
        return {"fedsgd.learning_rate": (0.1, 0.5, 1.0)}


class SgdProposed(Proposed):  # dovetail join: what the party does that agrees to it
    def describe(self, site, agreed):
        if "fedsgd" in agreed:
            yield "adds up    gradients of its loss on all its rows, once a round"


class AtParity(FedSgd):  # the same method, whatever else is asked of it
    fits, audited, keys, proposed = SgdFits(), SgdAudited(), SgdKeys(), SgdProposed()
