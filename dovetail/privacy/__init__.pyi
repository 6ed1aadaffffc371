"""What ``dovetail.privacy`` offers; each name is imported when it is first used."""

from dovetail.privacy.accountant import Accountant as Accountant
from dovetail.privacy.accountant import epsilon as epsilon
from dovetail.privacy.accountant import most_releases as most_releases
from dovetail.privacy.budget import Budget as Budget
from dovetail.privacy.budget import within as within
from dovetail.privacy.labels import in_stages as in_stages
from dovetail.privacy.labels import randomised as randomised
from dovetail.privacy.masks import KEY_BYTES as KEY_BYTES
from dovetail.privacy.masks import MaskKeys as MaskKeys
from dovetail.privacy.masks import from_fixed as from_fixed
from dovetail.privacy.masks import to_fixed as to_fixed
from dovetail.privacy.masks import total as total
from dovetail.privacy.release import Releasing as Releasing
from dovetail.privacy.release import distance_correlation as distance_correlation
from dovetail.privacy.release import randomised_response as randomised_response
from dovetail.privacy.release import released_to as released_to
from dovetail.privacy.release import spent_text as spent_text
from dovetail.privacy.spread import potential_energy as potential_energy
from dovetail.privacy.steps import Stepping as Stepping
from dovetail.privacy.sums import MIN_MEMBERS as MIN_MEMBERS
from dovetail.privacy.sums import SecretSums as SecretSums
from dovetail.privacy.sums import check_weights as check_weights
