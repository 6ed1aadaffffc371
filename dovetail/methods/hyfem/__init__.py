"""HyFEM: the paper is ``hyfem.py``, and ``full.py`` has it with its layers."""

from dovetail.methods.hyfem.agreement import Agreement, Begin, Hello, Holding, Ready
from dovetail.methods.hyfem.calibration import GiveMoments, Judge, Judged, Moments
from dovetail.methods.hyfem.full import Coordinator, Member
from dovetail.methods.hyfem.hyfem import Finish, Finished, Round, Train, Trained
from dovetail.methods.hyfem.judging import GiveScore, Score
from dovetail.methods.hyfem.local_data import HyfemData
from dovetail.methods.hyfem.settings import alone, fedavg, fedper, fedprox
from dovetail.methods.settings.hyfem import Config, Settings
