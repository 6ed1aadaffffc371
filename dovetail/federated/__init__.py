"""Framework for every method: a party and its context, a driver and its context, the loop."""

from dovetail.federated.best import BestRound, Scored, Snapshots
from dovetail.federated.driver import Driver, Epoch, Played, Plays, Round, is_due, play_round, train
from dovetail.federated.federation import (
    Federation,
    LeftOut,
    end,
    ending_announced,
    in_round,
    normalised,
    scored_without,
)
from dovetail.federated.local import MAX_PARAMETER_BYTES, Local, Loss
from dovetail.federated.party import MAX_USES, Party, handles, read_settings, restore_into, state_of
