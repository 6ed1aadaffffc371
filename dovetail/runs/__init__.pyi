"""What ``dovetail.runs`` offers; each name is imported when it is first used."""

from dovetail.methods.outcome import Outcome as Outcome
from dovetail.models.metrics import headline as headline
from dovetail.models.metrics import mean_and_spread as mean_and_spread
from dovetail.models.metrics import score as score
from dovetail.network.retry import write_text as write_text
from dovetail.runs.one_seed import run as run
from dovetail.runs.runfolder import RunFolder as RunFolder
from dovetail.runs.runfolder import finished as finished
from dovetail.runs.runfolder import summarise as summarise
from dovetail.runs.runfolder import versions as versions
