"""Networks that were trained beforehand, whose files a party has."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import model_validator

from dovetail.settings.section import Section

_NOT_COMMERCIAL = re.compile(r"non.?commercial|\bnc\b|research[ -]only|academic", re.IGNORECASE)


class TeacherWeights(Section):
    """[party.tabicl]: weights that teach a student of this party's own columns (APFed)."""

    weights: str  # the file, which is on this machine; nothing is downloaded
    weights_licence: str  # of that file, in its own words
    use: Literal["commercial", "non-commercial"] = "commercial"  # what the models are for

    @model_validator(mode="after")
    def _permitted(self) -> TeacherWeights:
        if not self.weights_licence.strip():
            raise ValueError("weights_licence is the licence that the weights came with; name it")
        if self.use == "commercial" and _NOT_COMMERCIAL.search(self.weights_licence):
            raise ValueError(
                f"weights under {self.weights_licence!r} are not for commercial use, and use is "
                '"commercial"; give use = "non-commercial" if it is, or leave them out'
            )
        return self
