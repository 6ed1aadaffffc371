"""The bottom network that a section of FedOptimus names."""

from __future__ import annotations

from dovetail.methods.settings.fedoptimus import BottomField, ResNet18Section, StripCnnSection
from dovetail.models import OwnNetwork
from dovetail.models.owners import (
    BottomSpec,
    ColumnsMlp,
    EncodedMlp,
    OwnBottom,
    OwnerResNet,
    StripCnn,
)


def bottom(field: BottomField | OwnNetwork | None, shape: tuple[int, ...]) -> BottomSpec:
    """The network that a file names: a kind, its settings, or hidden widths; None: by the rows.

    Raises:
        ConfigError: settings that cannot be.
    """
    match field:
        case None:
            return StripCnn() if len(shape) == 3 else EncodedMlp()
        case OwnNetwork():
            return OwnBottom(field)
        case "strip-cnn":
            return StripCnn()
        case "resnet-18":
            return OwnerResNet()
        case StripCnnSection():
            return StripCnn(field.channels, field.kernel, field.stride, field.hidden)
        case ResNet18Section():
            return OwnerResNet(field.width)
    assert isinstance(field, tuple)
    return ColumnsMlp(field)
