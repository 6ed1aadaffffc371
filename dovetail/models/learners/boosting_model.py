"""Boosted trees as they are kept: LightGBM's own text, byte by byte in a tensor.

The text is read here and not by LightGBM, which follows nodes and offsets unchecked: a text that
was tampered with ends its process. So nothing but training needs LightGBM.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dovetail.errors import ModelError
from dovetail.models.learners.member import MemberSpec

#: What ``decision_type`` says besides "missing goes left": a test on categories, or on missing
#: values. No learner here grows such trees.
_NOT_PLAIN = ~2
#: Rows times trees that are followed at once: arrays that stay in a processor's cache.
_MOST_NODES = 25_000

#: Rows whose trees are summed at a time.
_MOST_ROWS = 1 << 12


@dataclass(frozen=True, eq=False)
class _Forest:
    """All nodes of T trees in one row; a child below 0 is leaf ``-1 - child``.

    Attributes:
        roots_T: each tree's first node, or leaf.
        feature, threshold, left, right: of each node.
        leaves: the value of each leaf.
    """

    roots_T: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    leaves: Tensor

    def values(self, x_BF: Tensor) -> Tensor:
        """(B, T) float64 what each tree says of float64 rows."""
        steps = self._steps
        x_BF = torch.where(x_BF.isnan(), torch.inf, x_BF)  # above every threshold, as it is now
        x = x_BF.contiguous().numpy()
        at_once = max(1, _MOST_NODES // len(steps.roots_T))
        shape = min(at_once, len(x)), len(steps.roots_T)
        # ``take`` is fast where places are 64 bits wide and nothing is made or checked anew.
        at, place = np.empty(shape, np.int64), np.empty(shape, np.int64)
        asked, threshold = np.empty(shape), np.empty(shape)
        beyond = np.empty(shape, np.bool_)
        values_BT = np.empty((len(x), len(steps.roots_T)))
        for start in range(0, len(x), at_once):
            part = x[start : start + at_once]
            if len(part) < len(at):
                at, place, beyond = at[: len(part)], place[: len(part)], beyond[: len(part)]
                asked, threshold = asked[: len(part)], threshold[: len(part)]
            flat, rows_B1 = part.ravel(), np.arange(len(part))[:, None] * part.shape[1]
            at[:] = steps.roots_T
            for _ in range(steps.depth):
                steps.feature.take(at, out=place, mode="clip")
                flat.take(np.add(place, rows_B1, out=place), out=asked, mode="clip")
                steps.threshold.take(at, out=threshold, mode="clip")
                np.greater(asked, threshold, out=beyond)
                steps.left.take(at, out=place, mode="clip")
                np.add(place, beyond, out=at)
            steps.values.take(at, out=values_BT[start : start + at_once], mode="clip")
        return torch.from_numpy(values_BT)

    @functools.cached_property
    def _steps(self) -> _Steps:
        nodes, leaves = len(self.feature), len(self.leaves)

        def index_of(child: Tensor) -> np.ndarray:
            """Leaves stand behind the nodes."""
            numbers = child.numpy()
            return np.where(numbers < 0, nodes - 1 - numbers, numbers)

        roots, children = (
            index_of(self.roots_T),
            np.stack([index_of(self.left), index_of(self.right)], axis=1),
        )
        level, end = roots, 0
        indices, lefts = list[np.ndarray](), list[np.ndarray]()
        while len(level):
            is_node = level < nodes
            begin, end = end, end + len(level)
            lefts.append(np.where(is_node, end + 2 * (is_node.cumsum() - 1), np.arange(begin, end)))
            indices.append(level)
            level = children[level[is_node]].ravel()
        index = np.concatenate(indices)
        return _Steps(
            np.arange(len(roots)),
            np.append(self.feature.numpy(), np.zeros(leaves, np.int64))[index],
            np.append(self.threshold.numpy(), np.full(leaves, np.inf))[index],
            np.concatenate(lefts),
            np.append(np.zeros(nodes), self.leaves.numpy())[index],
            len(indices) - 1,
        )


@dataclass(frozen=True, eq=False)
class _Steps:
    """A forest to go down without a look at what is a leaf: nothing is beyond a leaf's threshold.

    Attributes:
        roots_T: each tree's first node.
        feature, threshold: of each node.
        left: the left child of each node, behind which the right one stands; a leaf itself.
        values: of each node; 0 of one that is no leaf.
        depth: of the deepest tree.
    """

    roots_T: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    values: np.ndarray
    depth: int


def _num_scores(num_outputs: int) -> int:
    """By default two are two classes, of which the first has 0."""
    return 1 if num_outputs == 2 else num_outputs


class BoostedTrees(nn.Module):
    """(B, F) -> (B, C); two classes have one score, and the outputs (0, score)."""

    text_T: Tensor
    start_S: Tensor

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        text_bytes: int,
        num_scores: int | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.num_outputs = num_outputs
        self.register_buffer("text_T", torch.zeros(text_bytes, dtype=torch.uint8))
        self.register_buffer("start_S", torch.zeros(num_scores or _num_scores(num_outputs)))
        self._read: tuple[Tensor, _Forest] | None = None

    def forward(self, x_BF: Tensor) -> Tensor:
        if x_BF.is_meta:
            return x_BF.new_zeros(len(x_BF), self.num_outputs)
        # What each tree says of a row is more than its features.
        parts = [self._summed(part) for part in x_BF.detach().cpu().split(_MOST_ROWS)]
        scores_BS = torch.cat(parts).to(x_BF.device) + self.start_S
        if len(self.start_S) < self.num_outputs:
            return torch.cat([torch.zeros_like(scores_BS), scores_BS], dim=1)
        return scores_BS

    def _summed(self, x_BF: Tensor) -> Tensor:
        """(B, S) what the trees say together; they stand round by round, one a score."""
        values_BT = self.forest().values(x_BF.double())
        scores_BS: Tensor = values_BT.unflatten(1, (-1, len(self.start_S))).sum(dim=1)
        return scores_BS.float()

    def text(self) -> str:
        """LightGBM's text as it was kept; ``start_S`` is not in it."""
        return self.text_T.cpu().numpy().tobytes().decode()

    def checked_text(self) -> str:
        """Text of the trees for ``lightgbm.Booster(model_str=...)``, made of checked numbers only.

        LightGBM believes a text's sizes, offsets and counts: one ``tree_sizes`` ends the process.

        Raises:
            ModelError: a text that no learner here wrote.
        """
        self.forest()
        try:
            return _written(self.text(), self.num_features, len(self.start_S))
        except (ValueError, KeyError) as error:
            raise ModelError(
                f"its trees cannot be read ({error}); copy the whole folder again"
            ) from None

    def spec(self) -> BoostingSpec:
        """Spec that it is rebuilt from."""
        usual = len(self.start_S) == _num_scores(self.num_outputs)
        scores = None if usual else len(self.start_S)
        return BoostingSpec(self.num_features, self.num_outputs, len(self.text_T), scores)

    def forest(self) -> _Forest:
        """Trees in the text; read once.

        Raises:
            ModelError: a text that no learner here wrote.
        """
        if self._read is None or self._read[0] is not self.text_T:
            try:
                forest = _forest(self.text(), self.num_features, len(self.start_S))
            except (ValueError, KeyError) as error:
                raise ModelError(
                    f"its trees cannot be read ({error}); copy the whole folder again"
                ) from None
            self._read = self.text_T, forest
        return self._read[1]


def _forest(text: str, num_features: int, num_scores: int) -> _Forest:
    """The trees of a text.

    Raises:
        ValueError, KeyError: trees that cannot be.
    """
    text = text.split("end of trees")[0]
    num_trees = text.count("\nTree=")
    if not num_trees or num_trees % num_scores:
        raise ValueError(f"{num_trees} trees for {num_scores} scores")
    leaves_T = _numbers(text, "num_leaves", np.ones(num_trees)).astype(np.int64)
    if leaves_T.min() < 1:
        raise ValueError("a tree without leaves")
    splits_T = leaves_T - 1
    leaves = _numbers(text, "leaf_value", leaves_T)
    feature, threshold, kind, left, right = (
        _numbers(text, name, splits_T)
        for name in ("split_feature", "threshold", "decision_type", "left_child", "right_child")
    )
    if (kind.astype(np.int64) & _NOT_PLAIN).any():
        raise ValueError("a node asks for a category or a missing value")
    if not ((feature >= 0) & (feature < num_features)).all():
        raise ValueError(f"a node asks for a feature beyond the {num_features}")
    first_node_T, first_leaf_T = splits_T.cumsum() - splits_T, leaves_T.cumsum() - leaves_T
    first_node, first_leaf, splits = (
        np.repeat(each_T, splits_T) for each_T in (first_node_T, first_leaf_T, splits_T)
    )
    indices = np.arange(len(feature)) - first_node
    children = []
    for child in (left, right):
        # A child is a later node or a leaf: every way down ends.
        later = (child > indices) & (child < splits)
        if not (later | ((child < 0) & (child >= -1 - splits))).all():
            raise ValueError("a node points outside its tree")
        children.append(np.where(child < 0, child - first_leaf, child + first_node))
    if len(np.unique(children)) < 2 * len(feature):
        raise ValueError("a node or leaf has two parents")

    def tensor(values: np.ndarray) -> Tensor:
        # One node more, which no root leads to: trees without any node need one to look at.
        return torch.from_numpy(np.append(values, 0.0))

    return _Forest(
        torch.from_numpy(np.where(splits_T > 0, first_node_T, -1 - first_leaf_T)),
        tensor(feature).long(),
        tensor(threshold),
        tensor(children[0]).long(),
        tensor(children[1]).long(),
        tensor(leaves),
    )


#: What LightGBM reads of a tree: name -> whether there is one a leaf, or one a split.
_OF_LEAVES = {
    "split_feature": False,
    "split_gain": False,
    "threshold": False,
    "decision_type": False,
    "left_child": False,
    "right_child": False,
    "leaf_value": True,
    "leaf_weight": True,
    "leaf_count": True,
    "internal_value": False,
    "internal_weight": False,
    "internal_count": False,
}
_WHOLE = ("split_feature", "decision_type", "left_child", "right_child", "leaf_count")
_COUNTS = ("leaf_count", "internal_count")


def _written(text: str, num_features: int, num_scores: int) -> str:
    """The trees of a text that ``_forest`` has read, written again.

    Raises:
        ValueError, KeyError: counts that cannot be.
    """
    text = text.split("end of trees")[0]
    num_trees = text.count("\nTree=")
    leaves_T = _numbers(text, "num_leaves", np.ones(num_trees)).astype(np.int64)
    read: dict[str, list[np.ndarray]] = {}
    for name, of_leaves in _OF_LEAVES.items():
        counts_T = leaves_T if of_leaves else leaves_T - 1
        values = _numbers(text, name, counts_T)
        if name in (*_WHOLE, *_COUNTS):
            values = values.astype(np.int64)
        if name in _COUNTS and (values < 0).any():
            raise ValueError(f"a tree has a {name} below 0")
        read[name] = np.split(values, counts_T.cumsum()[:-1])
    names = " ".join(f"Column_{index}" for index in range(num_features))
    lines = [
        "tree",
        "version=v4",
        f"num_class={num_scores}",
        f"num_tree_per_iteration={num_scores}",
        "label_index=0",
        f"max_feature_idx={num_features - 1}",
        f"feature_names={names}",
        f"feature_infos={' '.join(['[-1e300:1e300]'] * num_features)}",
        "",
    ]
    for tree, num_leaves in enumerate(leaves_T.tolist()):
        lines += [f"Tree={tree}", f"num_leaves={num_leaves}", "num_cat=0"]
        lines += [
            f"{name}={' '.join(map(repr, each[tree].tolist()))}" for name, each in read.items()
        ]
        lines += ["is_linear=0", "shrinkage=1", "", ""]
    return "\n".join([*lines, "end of trees", ""])


def _numbers(text: str, name: str, counts_T: np.ndarray) -> np.ndarray:
    """Finite float64 of all trees' lines "name=...", side by side.

    Raises:
        ValueError, KeyError: a tree has another number of them.
    """
    texts = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    if len(texts) != len(counts_T):
        raise KeyError(name)
    for each, count in zip(texts, counts_T.tolist(), strict=True):
        if each.count(" ") + bool(each) != count:
            raise ValueError(f"a tree has {each!r:.40} of {name}, expected {count:g} numbers")
    values = np.array(list(map(float, " ".join(texts).split())))
    if not np.isfinite(values).all():
        raise ValueError(f"a tree has a {name} that is no finite number")
    return values


@dataclass(frozen=True)
class BoostingSpec(MemberSpec):
    """The text's length and what goes in and out."""

    kind: ClassVar[str] = "boosting"
    unsaid: ClassVar[tuple[str, ...]] = ("num_scores",)

    num_features: int
    num_outputs: int
    text_bytes: int
    num_scores: int | None = None  # those of the outputs

    def build(self) -> BoostedTrees:
        return BoostedTrees(self.num_features, self.num_outputs, self.text_bytes, self.num_scores)
