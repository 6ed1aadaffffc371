"""Layers and networks that algorithms share, and the form in which a model is kept."""

from dovetail.models.blocks import Extractor, ResNet, Unchanged
from dovetail.models.columns import Column, Columns, ColumnsSpec
from dovetail.models.networks import (
    TABLE_3,
    TABLE_4,
    Convolutional,
    EncoderSpec,
    Head,
    OwnNetwork,
    Perceptron,
    network_input,
    output_shape,
)
from dovetail.models.optimizers import Optimizer, follow_back, pull
from dovetail.models.owners import (
    Bottom,
    ColumnsMlp,
    OwnerResNet,
    OwnersSpec,
    StripCnn,
    TopSpec,
    load_bottom,
)
from dovetail.models.randomness import (
    RandomStream,
    Secret,
    derive_key,
    derive_seed,
    generator,
    key_of,
)
from dovetail.models.saved import Model, load
from dovetail.models.specs import EncoderHead, EncoderHeadNetwork, NetworkSpec
from dovetail.models.stacked import StackedColumns, StackedOptimizer
