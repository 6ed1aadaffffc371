"""Methods as Python objects: the sections of a run file, checked when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from dovetail import methods
from dovetail.errors import ConfigError
from dovetail.methods.settings.shared import FileRecord
from dovetail.methods.validation import validate
from dovetail.settings.section import Section

if TYPE_CHECKING:
    from dovetail.api.settings import (
        APFedPartySettings,
        APFedSettings,
        CHFLSettings,
        FedOptimusSettings,
        HyFEMSettings,
    )

#: What helpers learn by -> what it makes APFed in a run file.
LOSSES: Mapping[str, str] = {"reconstruction": "apfed-r", "contrastive": "apfed-c"}

#: The partners' help in one encrypted question, and in a joint model, distilled into the label
#: owner's own; and the paper's, with each helper's own loss.
SEALED, DISTIL, MIXED = "apfed", "apfed-d", "apfed-mixed"

#: What ``APFed`` may be -> what it is in a run file.
VARIANTS: Mapping[str, str] = {
    "sealed": SEALED,
    "distil": DISTIL,
    **LOSSES,
    "partners": MIXED,
}


class Method:
    """Method to train, and its settings; the keys are those of a run file.

    For a method of an installed package, or a baseline on its own; the four papers' have classes.

    Args:
        variant_name: what ``method =`` of a run file may be, such as ``"tvfl"`` or
            ``"fedoptimus"``.
        settings: its section of a run file.

    Raises:
        ConfigError: no such method, or a key or value that does not fit, with the nearest known.
    """

    def __init__(self, variant_name: str, **settings: Any) -> None:
        known = methods.variants()
        if variant_name not in known:
            from dovetail.data.tables import nearest  # reads the libraries of tables

            meant = methods.did_you_mean_variant(variant_name, known) or nearest(
                variant_name, known
            )
            raise ConfigError(f"there is no method {variant_name!r}{meant}")
        self._variant = variant_name
        self._settings = settings
        validate(self._record.Settings, settings, where=f"dovetail.{self._name_shown}")

    @property
    def variant_name(self) -> str:
        """Value of ``method =`` in a run file."""
        return self._variant

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that were given."""
        return dict(self._settings)

    @property
    def name(self) -> str:
        """Name of its section of a run file."""
        return self._record.name

    @property
    def _record(self) -> FileRecord:
        return methods.record_of(self._variant)

    @property
    def _name_shown(self) -> str:
        return f"Method({self._variant!r})"

    def __repr__(self) -> str:
        given = "".join(f", {key}={value!r}" for key, value in self._settings.items())
        return f"Method({self._variant!r}{given})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


class _Paper(Method):
    """A method with a class of its own."""

    of: ClassVar[str]  # its variant

    def __init__(self, **settings: Any) -> None:
        super().__init__(self.of, **settings)

    @property
    def _name_shown(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self._settings.items())
        return f"{type(self).__name__}({given})"


class APFed(_Paper):
    """Partners help to train, and the party with the labels then predicts alone (Liu et al.).

    Args:
        variant: ``"sealed"`` (APFed-S): partners read nothing, a few numbers a row come back
            encrypted, and what they say is distilled into the label owner's own model.
            ``"distil"`` (APFed-D): so is a joint model, for who trusts its partners. Or the
            paper's, of which no code of a partner's rows leaves it: partners in this process that
            set no loss learn by ``"reconstruction"`` (APFed-R) or ``"contrastive"``
            (APFed-C); with ``"partners"`` each by the loss of its own settings.
        passive: of the paper's variants, more settings of partners in this process that do not set
            them: ``encoder``, ``learning_rate``, ``temperature``, ...
        settings: the section ``[apfed]`` of a run file: ``encoder``, ``head``, ``epochs``,
            ``steps_per_epoch``, ``batch_size``, ``learning_rate``, ``trade_off``, ...

    Raises:
        ConfigError: a key or value that does not fit.
    """

    of = "apfed"

    def __init__(
        self,
        variant: Literal[
            "sealed", "distil", "reconstruction", "contrastive", "partners"
        ] = "sealed",
        *,
        passive: APFedPartySettings | None = None,
        **settings: Unpack[APFedSettings],
    ) -> None:
        if variant not in VARIANTS:
            known = ", ".join(VARIANTS)
            raise ConfigError(f"dovetail.APFed: variant is one of {known}, got {variant!r}")
        if variant in ("sealed", "distil") and callable(settings.get("encoder")):
            raise ConfigError(
                f"dovetail.APFed: {variant!r} chooses among learners and has no encoder; a network "
                'of your own is for "contrastive", "reconstruction" and "partners"'
            )
        super().__init__(**settings)
        self._variant = VARIANTS[variant]
        self.variant = variant
        defaults = {"loss": variant} if variant in LOSSES else {}
        self.passive: dict[str, Any] = {**defaults, **(passive or {})}
        fields = self._record.PartySettings or Section
        checked = validate(fields, self.passive, where="dovetail.APFed, passive")
        if "encoder" in self.passive:  # a network of one's own, as settings have it
            self.passive["encoder"] = checked.model_dump(mode="json")["encoder"]

    def __repr__(self) -> str:
        variant = "" if self.variant == "sealed" else repr(self.variant)
        passive = {key: value for key, value in self.passive.items() if key != "loss"}
        given = [variant, f"passive={passive!r}" if passive else ""]
        given += [f"{key}={value!r}" for key, value in self._settings.items()]
        return f"APFed({', '.join(filter(None, given))})"


class CHFL(_Paper):
    """Parties of one kind with other samples, and some columns in common (Mori et al.).

    Args:
        settings: the section ``[chfl]`` of a run file: ``rounds``, ``local_epochs``, ``mu``,
            ``learning_rate``, ...

    Raises:
        ConfigError: a key or value that does not fit.
    """

    of = "chfl"

    def __init__(self, **settings: Unpack[CHFLSettings]) -> None:
        super().__init__(**settings)


class HyFEM(_Paper):
    """Parties with any blocks of any samples, each with labels of its own (Zhang et al.).

    Args:
        settings: the section ``[hyfem]`` of a run file: ``rounds``, ``width``, ``mu_1``, ``mu_2``,
            ``learning_rate``, ...

    Raises:
        ConfigError: a key or value that does not fit.
    """

    of = "hyfem"

    def __init__(self, **settings: Unpack[HyFEMSettings]) -> None:
        super().__init__(**settings)


class FedOptimus(_Paper):
    """Many owners of columns, several owners of labels, who predict together (Shrivastava et al.).

    Args:
        settings: the section ``[fedoptimus]`` of a run file: ``rounds``, ``sync_every``,
            ``server``, ``selection``, ``learning_rate``, ...

    Raises:
        ConfigError: a key or value that does not fit.
    """

    of = "fedoptimus"

    def __init__(self, **settings: Unpack[FedOptimusSettings]) -> None:
        super().__init__(**settings)
