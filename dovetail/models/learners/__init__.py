"""Learners of the label owner's columns, alone or from soft targets."""

from dovetail.models.learners.boosting import Boosting, Trees
from dovetail.models.learners.choice import LEARNERS, Best, best_of, fit_all, held_out_loss
from dovetail.models.learners.linear import Linear
from dovetail.models.learners.network import Network
from dovetail.models.learners.rows import (
    NO_FOLD,
    Rows,
    first_fold_only,
    hard_targets,
    hold_out,
    make_folds,
)
from dovetail.models.learners.specs import EnsembleSpec, Fitted, Learner
from dovetail.models.learners.vertical import (
    OwnerSide,
    PartySide,
    Stacked,
    StackedConfig,
    fit_stacked,
)
