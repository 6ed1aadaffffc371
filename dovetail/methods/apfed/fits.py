"""Which federations APFed fits: labels at one party, samples and more columns at others.

Figures are reported by ``dovetail audit FILE --fast`` with seed 0 (APFed-S without
``--fast``; docs/privacy.md) and by ``dovetail bench worth``, beside the best local model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from dovetail.data.coverage import Part
from dovetail.data.partytables import IMAGES
from dovetail.data.wording import count_text, name_list
from dovetail.methods.apfed.partners import passive_fields
from dovetail.methods.base import Run, Site
from dovetail.methods.facets.declared import Reported
from dovetail.methods.facets.fits import (
    FLOAT,
    PLACE,
    Fit,
    Fits,
    MessageSize,
    Situation,
    Sizes,
    no,
    range_text,
    samples_text,
)
from dovetail.methods.limits import MAX_LABELLED
from dovetail.methods.section import encoder_spec
from dovetail.methods.settings.apfed import ApfedSection, PassiveFields
from dovetail.models import output_shape
from dovetail.privacy import encrypted

_LABELS = ("apfed.label_epsilon", "apfed.label_stages")

REPORTED = {
    "apfed": Reported(
        shows=(
            "labels and columns, to partners: none on digits and credit",
            "partners' columns, to the label owner: high on digits, low on credit",
        ),
        gain="solo model 2.6 points, joint model 11.4 (25 settings)",
        bounds=("policy.sealed",),
        letters=(2, 0),
    ),
    "apfed-d": Reported(
        shows=(
            "labels, to partners: none on digits and credit",
            "partners' columns, to the label owner: low on both",
            'with apfed.distil.exchange = "gradients" labels and columns, both ways: high on both',
        ),
        gain='solo model 0.0 points (25 settings); with exchange = "gradients" 2.2, joint model '
        "13.8 (25 settings)",
        bounds=(*_LABELS, "apfed.distil.exchange", "passive.distil.release"),
        letters=(3, 0),
    ),
    "apfed-mixed": Reported(
        shows=(
            "labels, to partners: high on digits (all labelled), none on credit",
            "columns, both ways: high on digits and on credit",
        ),
        gain="-3.7 points by reconstruction, -0.6 by contrast, of tables (5 settings)",
        bounds=(
            "apfed.projection", "apfed.codes", *_LABELS, "apfed.decorrelate", "apfed.spread",
            "apfed.private", "passive.gradients",
        ),
        also=("apfed-r", "apfed-c"),
    ),
    "tvfl": Reported(
        shows=(
            "labels that are trained on, to partners: high (all of them on credit)",
            "partners' columns, to the label owner: high",
        ),
        bounds=("apfed.gradients", *_LABELS, "apfed.spread", "passive.codes"),
    ),
}  # fmt: skip


_NAME = "apfed"

#: Shared rows without label that APFed-S asks about at most, by default.
_ASKED = 8000


class ApfedFits(Fits):
    """Labels at exactly one party, whose samples others share, with columns that it lacks."""

    title = "APFed"
    order = 0

    def fit(self, situation: Situation) -> Fit:
        return _fit(situation)

    def sizes(
        self, run: Run, parts: Sequence[Part], sites: Mapping[str, Site], *, sealed: bool
    ) -> Sizes:
        """The run's batches, and the codes that its label owner will send, if it is not APFed-S.

        Raises:
            ConfigError: an encoder that does not fit the label owner's rows.
        """
        passives = {name: site.settings(_NAME, PassiveFields) for name, site in sites.items()}
        if run.data is not None:
            passives = passive_fields(run)
        return message_sizes(run.settings(_NAME, ApfedSection), parts, passives, sealed=sealed)


def message_sizes(
    settings: ApfedSection,
    parts: Sequence[Part],
    passives: Mapping[str, PassiveFields],
    *,
    sealed: bool,
) -> Sizes:
    """The run's batches, and the codes that its label owner will send, if it is not APFed-S.

    Raises:
        ConfigError: an encoder that does not fit the label owner's rows.
    """
    batch_size, projection = settings.batch_size, settings.projection
    if sealed:
        return Sizes(batch_size)
    owners = [part for part in parts if len(part.data.labelled_rows())]
    if len(owners) != 1 or not owners[0].data.blocks:  # no APFed then
        return Sizes(batch_size, sealed=False)
    if IMAGES in owners[0].data.blocks and len(owners[0].data.blocks) > 1:  # HyFEM's
        return Sizes(batch_size, sealed=False)
    shapes = [tuple(x.shape[1:]) for x in owners[0].data.blocks.values()]
    # Blocks of a table stand side by side.
    row_shape = shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),)
    encoder = encoder_spec(settings.encoder).encoder(row_shape)
    code_width = math.prod(output_shape(encoder, row_shape, torch.device("cpu")))
    contrasting = [name for name, fields in passives.items() if fields.loss == "contrastive"]
    projected = dict.fromkeys(contrasting, projection or code_width)
    return Sizes(batch_size, code_width, projected, sealed=False)


def _fit(situation: Situation) -> Fit:
    """Fit of a situation in which one party has labels and the others have columns of samples they
    share."""
    owners = situation.owners
    if not owners:
        return no(_NAME, "no party has labels; APFed needs exactly one that has")
    if len(owners) > 1:
        return no(
            _NAME,
            f"{count_text(len(owners), 'party', 'parties')} have labels ({name_list(owners)}); "
            "APFed needs exactly one (to train for one of them, leave the others' labels out)",
        )
    (owner,) = owners
    helpers = situation.without
    if not helpers:
        return no(
            _NAME, f"{owner} is the only party; APFed needs another with more columns of its rows"
        )
    wrong = []
    if not situation.columns[owner]:
        wrong.append(f"{owner} has labels but no columns to predict from")
    shared = {name: situation.shared(owner, name) for name in helpers}
    added = {name: len(situation.columns[name] - situation.columns[owner]) for name in helpers}
    apart = [name for name in helpers if shared[name] == 0]
    idle = [name for name in helpers if not added[name]]
    if apart:
        verb = "shares" if len(apart) == 1 else "share"
        wrong.append(f"{name_list(apart)} {verb} no sample with {owner} (check the id column)")
    if idle:
        verb = "holds" if len(idle) == 1 else "hold"
        wrong.append(f"{name_list(idle)} {verb} no column that {owner} lacks")
    if wrong:
        if 0 < len({*apart, *idle}) < len(helpers) and situation.columns[owner]:
            wrong.append(
                "without them it would fit"
                if len({*apart, *idle}) > 1
                else f"without {[*apart, *idle][0]} it would fit"
            )
        return no(_NAME, *wrong)
    uncounted = [name for name in helpers if shared[name] is None]
    if uncounted:
        return Fit(
            _NAME,
            False,
            f"unknown: the samples that {name_list(uncounted)} and {owner} share were not counted",
        )
    if len(helpers) <= 3:
        help_ = "; ".join(
            f"{name} shares {samples_text(situation.overlaps, shared[name] or 0)} with it and adds "
            f"{count_text(added[name], 'column')}"
            for name in helpers
        )
    else:
        counts = range_text([count or 0 for count in shared.values()], "sample")
        help_ = (
            f"each of {len(helpers)} others shares {counts} with it and adds "
            f"{range_text(list(added.values()), 'column')}"
        )
    rows = situation.overlaps.rows[owner]
    yes = (
        f"yes: only {owner} has labels ({situation.labelled[owner]:,} of "
        f"{count_text(rows, 'row')}); {help_}"
    )
    command = "dovetail train RUN --set method=apfed"
    if situation.sizes.sealed:
        questions = tuple(_question(situation, owner, name) for name in helpers)
        return Fit(_NAME, True, yes, command, questions)
    batch_size, code_widths = (
        situation.sizes.batch_size,
        [situation.sizes.sent_to(n) for n in helpers],
    )
    steps = math.ceil(situation.labelled[owner] / batch_size)
    assuming = (
        f"batches of {batch_size} rows, codes of "
        f"{' or '.join(f'{width:,}' for width in sorted(set(code_widths)))} float32 values, "
        f"{count_text(steps, 'step')} an epoch"
    )
    return Fit(
        _NAME,
        True,
        yes,
        command,
        tuple(
            _step(situation, owner, name, width, assuming)
            for name, width in zip(helpers, code_widths, strict=True)
        ),
    )


def _question(situation: Situation, owner: str, helper: str) -> MessageSize:
    """The one question of APFed-S and its answer, of one number a row and class."""
    rows = situation.shared(owner, helper)
    rows = situation.overlaps.rows[owner] if rows is None else rows
    labelled = max(2, min(situation.labelled[owner], rows, MAX_LABELLED))
    asked = min(rows, labelled + _ASKED)
    of_numbers = situation.classes[owner] is None
    columns = situation.num_outputs if of_numbers else max(1, situation.num_outputs - 1)
    each = "label" if of_numbers else "class but the last"
    layout = encrypted.Layout.best(labelled, columns, asked)
    sent = layout.num_targets * encrypted.TARGET_WIRE + encrypted.KEY_WIRE + 2 * labelled * 8
    return MessageSize(
        owner,
        helper,
        "run",
        sent + asked * PLACE,
        layout.num_answers(asked) * layout.answer_wire + asked * PLACE,
        "APFed-S: one encrypted question a run, one number a row"
        + (f" and {each}, {columns}" if columns > 1 else ""),
    )


def _step(
    situation: Situation, owner: str, helper: str, code_width: int, assuming: str
) -> MessageSize:
    """A step's codes with the samples they are of, and the gradients that come back."""
    code_bytes = situation.sizes.batch_size * code_width * FLOAT
    sent_bytes = code_bytes + situation.sizes.batch_size * PLACE
    return MessageSize(owner, helper, "step", sent_bytes, code_bytes, assuming)
