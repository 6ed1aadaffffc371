"""Layers and networks that algorithms share, and the form in which a model is kept."""

from dovetail.models.networks import (
    TABLE_3,
    TABLE_4,
    Convolutional,
    EncoderSpec,
    Head,
    Perceptron,
    encoder_from_json,
    network_input,
    output_shape,
)
from dovetail.models.optimizers import OptimizerConfig
from dovetail.models.randomness import RandomStream, derive_seed, generator
from dovetail.models.saved import Model, Prediction, load

__all__ = [
    "TABLE_3",
    "TABLE_4",
    "Convolutional",
    "EncoderSpec",
    "Head",
    "Model",
    "OptimizerConfig",
    "Perceptron",
    "Prediction",
    "RandomStream",
    "derive_seed",
    "encoder_from_json",
    "generator",
    "load",
    "network_input",
    "output_shape",
]
