"""HyFEM: the paper is ``hyfem.py``; upon it ``layers`` and ``calibration``."""

from dovetail.methods.hyfem.agreement import Agreement, Begin, Hello, Holding, Ready
from dovetail.methods.hyfem.calibration import (
    Coordinator,
    GiveMoments,
    Judge,
    Judged,
    Member,
    Moments,
)
from dovetail.methods.hyfem.hyfem import Finish, Finished, Round, Train, Trained
from dovetail.methods.hyfem.layers import GiveScore, Score, Validate, Validated
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.methods.settings.hyfem import (
    Config,
    Settings,
    alone,
    fedavg,
    fedma,
    fedper,
    fedprox,
    lg_fedavg,
)
