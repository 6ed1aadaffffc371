"""What ``import dovetail`` offers, as type checkers and editors know it."""

from dovetail import alignment as alignment
from dovetail import data as data
from dovetail import errors as errors
from dovetail import models as models
from dovetail import network as network
from dovetail import runs as runs
from dovetail.api.aligning import Matched as Matched
from dovetail.api.aligning import align as align
from dovetail.api.fit import fit as fit
from dovetail.api.inspecting import Inspection as Inspection
from dovetail.api.inspecting import inspect as inspect
from dovetail.api.inviting import invite as invite
from dovetail.api.lines import Partners as Partners
from dovetail.api.lines import join as join
from dovetail.api.lines import listen as listen
from dovetail.api.methods import CHFL as CHFL
from dovetail.api.methods import APFed as APFed
from dovetail.api.methods import FedOptimus as FedOptimus
from dovetail.api.methods import HyFEM as HyFEM
from dovetail.api.methods import Method as Method
from dovetail.api.party import Party as Party
from dovetail.api.run import Run as Run
from dovetail.api.scores import Scores as Scores
from dovetail.api.simulation import Simulation as Simulation
from dovetail.api.simulation import simulate as simulate
from dovetail.companions.survival.analyses import cox as cox
from dovetail.companions.survival.analyses import kaplan_meier as kaplan_meier
from dovetail.errors import DovetailError as DovetailError
from dovetail.methods import apfed as apfed
from dovetail.methods import fedoptimus as fedoptimus
from dovetail.methods import hyfem as hyfem
from dovetail.methods import selection as selection
from dovetail.methods import vertical as vertical
from dovetail.methods.chfl import layers
from dovetail.models.exported import load as load
from dovetail.runs.partitions import Blocks as Blocks
from dovetail.runs.partitions import ByColumn as ByColumn
from dovetail.runs.partitions import Columns as Columns
from dovetail.runs.partitions import CommonUnique as CommonUnique
from dovetail.runs.partitions import Owners as Owners
from dovetail.runs.partitions import Partition as Partition
from dovetail.runs.partitions import Strips as Strips

__version__: str

chfl = layers
