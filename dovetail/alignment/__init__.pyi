"""What ``dovetail.alignment`` offers; each name is imported when it is first used."""

from dovetail.alignment.curve import Workers as Workers
from dovetail.alignment.ids import normalise as normalise
from dovetail.alignment.limits import Alignments as Alignments
from dovetail.alignment.limits import default_max_ids as default_max_ids
from dovetail.alignment.matchkeys import Keys as Keys
from dovetail.alignment.matchkeys import MatchFormats as MatchFormats
from dovetail.alignment.matchkeys import MatchKey as MatchKey
from dovetail.alignment.matchkeys import key_values as key_values
from dovetail.alignment.matchkeys import match_key as match_key
from dovetail.alignment.matchkeys import rate as rate
from dovetail.alignment.passes import KeyResponder as KeyResponder
from dovetail.alignment.passes import align_by_keys as align_by_keys
from dovetail.alignment.passes import count_by_keys as count_by_keys
from dovetail.alignment.psi import ELSEWHERE as ELSEWHERE
from dovetail.alignment.psi import Aligned as Aligned
from dovetail.alignment.psi import Overlap as Overlap
from dovetail.alignment.psi import Pace as Pace
from dovetail.alignment.psi import align as align
from dovetail.alignment.psi import count_overlap as count_overlap
from dovetail.alignment.responder import Responder as Responder
from dovetail.alignment.responder import with_rows_of as with_rows_of
