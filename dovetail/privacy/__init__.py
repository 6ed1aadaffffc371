"""Whatever bounds, hides or noises a tensor before it leaves a party."""

from dovetail.privacy.accountant import Accountant, epsilon, most_releases
from dovetail.privacy.budget import Budget, within
from dovetail.privacy.labels import in_stages, randomised
from dovetail.privacy.masks import KEY_BYTES, MaskKeys, from_fixed, to_fixed, total
from dovetail.privacy.release import (
    Releasing,
    distance_correlation,
    randomised_response,
    released_to,
    spent_text,
)
from dovetail.privacy.spread import potential_energy
from dovetail.privacy.steps import Stepping
from dovetail.privacy.sums import MIN_MEMBERS, SecretSums, check_weights
