"""Several labels at once, of which a party may lack some: its classifier keeps their rows.

With ``class_weights`` the server's row of a label is the mean over those that know it, each by how
many of its rows do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.methods.hyfem.agreement import Begin, Ready
from dovetail.methods.hyfem.hyfem import Finish, Train
from dovetail.methods.hyfem.times import TimesMember
from dovetail.models.untaught import Untaught


class SeveralMember(TimesMember):
    """A party that sends back what it cannot learn as it came."""

    def begin(self, ask: Begin) -> Ready:
        ready, labels = super().begin(ask), self.labels
        if self.local.is_private:  # whether anybody has a label is not to be told
            labels = labels.nan_to_num() if labels.is_floating_point() else labels
        self.untaught = Untaught([*self.network.classifier.children()][-1:], self.task, labels)
        return ready

    @torch.no_grad()
    def take(self, sent: Train | Finish, *, load: bool) -> None:
        super().take(sent, load=load)
        self.untaught.keep()

    def weights(self) -> tuple[Tensor, Tensor]:
        self.untaught.put_back()
        return super().weights()
