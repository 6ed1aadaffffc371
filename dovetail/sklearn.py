"""scikit-learn estimators that train with partners and predict without them.

    from dovetail.sklearn import SoloClassifier

    lab = dt.Party("lab", lab_df, id="patient")
    model = SoloClassifier(partners=[lab], id="patient").fit(clinic_df, diagnosis)
    cross_val_score(SoloClassifier(partners=[lab], id="patient"), clinic_df, diagnosis)

The rows given to ``fit`` are the label owner's. Partners' rows follow by id, so that a fold of a
cross-validation trains with the partners' rows of its samples alone. Without partners the
estimator is the best local model: linear, boosted trees and network, weighted by held-out rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from dovetail.api.fit import fit
from dovetail.api.lines import Partners
from dovetail.api.methods import Method
from dovetail.api.party import Party
from dovetail.data import Classification, Survival, TableEncoder
from dovetail.data.frames import table_from_frame
from dovetail.data.tables import nearest
from dovetail.data.task import fit_task
from dovetail.errors import DovetailError
from dovetail.files import merge
from dovetail.models import Model, derive_seed
from dovetail.models.learners import LEARNERS, Rows, best_of, fit_all, make_folds
from dovetail.models.losses import loss_of, targets_of
from dovetail.models.survival import c_index
from dovetail.models.threads import one_thread
from dovetail.settings.labels import Kind

_FOLDS = 4

Several = Party | Sequence[Party] | Partners | None


class _Solo(BaseEstimator):  # type: ignore[misc]
    """Base of both estimators; a subclass says how labels are encoded."""

    def __init__(
        self,
        partners: Several = None,
        *,
        id: str | None = None,
        name: str = "owner",
        unlabelled: Any = None,
        settings: Mapping[str, Any] | None = None,
        learners: Sequence[str] = ("linear", "boosting", "network"),
        allow_unseen: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.partners = partners
        self.id = id
        self.name = name
        self.unlabelled = unlabelled
        self.settings = settings
        self.learners = learners
        self.allow_unseen = allow_unseen
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = not isinstance(self, SoloSurvival)
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags

    def set_params(self, **params: Any) -> _Solo:
        """Set these; ``settings__distil__max_steps`` is a key inside ``settings``."""
        settings: Any = self.settings
        for name in [each for each in params if each.startswith("settings__")]:
            value = params.pop(name)
            for key in reversed(name.split("__")[1:]):
                value = {key: value}
            settings = merge(_settings_of(settings), value)
        super().set_params(**params)
        if settings is not self.settings and "settings" not in params:
            self.settings = settings
        return self

    # --- Training -----------------------------------------------------------------------------

    def _fit(
        self,
        X: Any,
        labels_N: np.ndarray,
        sample_weight: Any,
        partners: Several,
        *,
        kind: Kind,
    ) -> None:
        """Train on (N,) numbers of classes, or values; (N, L) of several, NaN where missing."""
        frame = self._frame(X, reset=True)
        _warn_of_copies(frame, labels_N, kind)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, labels_N, ensure_non_negative=True)
            weights = torch.from_numpy(np.asarray(weights, dtype=np.float64))
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        here, elsewhere = _partners(self.partners if partners is None else partners)
        with _value_errors():
            if not here and elsewhere is None:
                self.model_ = self._local(frame, labels_N, weights, int(seed), kind=kind)
                return
            owner = self._owner(X, frame, labels_N, weights, kind=kind)
            method = Method("apfed", **_settings_of(self.settings))
            self.run_ = fit(
                method,
                [owner, *here],
                test=None,
                seeds=[int(seed)],
                partners=elsewhere,
                quiet=not self.verbose,
            )
            self.model_ = self.run_.models[self.name]
        self.helped_ = bool(self.run_.result["distilled"]["pays"])
        if not self.helped_:
            warnings.warn(
                "partners changed nothing: of rows held out, the own model did best, and it is "
                "what predicts (helped_ is False)",
                stacklevel=3,
            )

    def _local(
        self,
        frame: Any,
        labels_N: np.ndarray,
        weights_N: torch.Tensor | None,
        seed: int,
        *,
        kind: Kind,
    ) -> Model:
        """The best local model: of ``learners`` the mean, weighted by held-out rows."""
        unknown = [each for each in self.learners if each not in LEARNERS]
        if unknown or not self.learners:
            raise ValueError(f"learners are one or more of {', '.join(LEARNERS)}, got {unknown}")
        table = table_from_frame(frame, name="X")
        missing_N = np.zeros(len(labels_N), bool)
        if labels_N.ndim > 1:
            missing_N = np.isnan(labels_N).all(axis=1)
        task = fit_task(labels_N, missing_N, kind=kind, label="y")
        used = [each for each in frame.columns if not table.column(each).missing.all()]
        encoder = TableEncoder.fit(table, used, party=self.name)
        x_NF = encoder.transform(table)
        learnt = labels_N if isinstance(task, Classification) else task.encode(labels_N)
        labels = torch.from_numpy(np.ascontiguousarray(learnt))
        if kind == "survival":
            labels = labels.float()
        counts_N = torch.from_numpy(~missing_N) * (1 if weights_N is None else weights_N)
        chosen = counts_N.nonzero().flatten()
        if len(chosen) < 2:
            raise ValueError(f"two or more labelled rows are needed, got n_samples={len(chosen)}")
        labels, rows_NF = labels[chosen], x_NF[chosen]
        rows = Rows(
            rows_NF,
            targets_of(task, labels),
            make_folds(
                labels,
                min(_FOLDS, len(labels)),
                seed=derive_seed(seed, self.name, "folds"),
                regression=kind != "classification",
            ),
            None if weights_N is None else weights_N[chosen].float(),
            loss=loss_of(task),
        )
        with one_thread():
            fitted = fit_all([LEARNERS[each] for each in self.learners], rows, seed=seed)
            best = best_of(fitted, rows)
        shape = {"own": (x_NF.shape[1],)}
        about = {"method": "local", "seed": seed, "label": "y", "learner": best.learner}
        return Model(self.name, task, best.network, best.spec, shape, {"own": encoder}, about)

    def _owner(
        self,
        X: Any,
        frame: Any,
        labels_N: np.ndarray,
        weights_N: torch.Tensor | None,
        *,
        kind: Kind,
    ) -> Party:
        """The label owner as a party: features, ids and labels."""
        import pandas as pd

        rows = frame.copy()
        name = _free(self.id or "index of X", rows.columns)
        rows[name] = self._ids(X)
        label: str | list[str] = _free("y", rows.columns)
        if labels_N.ndim > 1:
            label = [_free(f"y{number}", rows.columns) for number in range(labels_N.shape[1])]
        rows[label] = labels_N
        if self.unlabelled is not None:
            more = self._frame(self.unlabelled, reset=False).copy()
            more[name] = self._ids(self.unlabelled)
            more = more[~more[name].isin(rows[name])]
            rows = pd.concat([rows, more], ignore_index=True)
            if kind == "classification":
                rows[label] = rows[label].astype("Int64")
        owner = Party(
            self.name,
            rows,
            id=name,
            label=label,
            task=kind,
        )
        if weights_N is not None:
            extra = torch.ones(len(rows) - len(weights_N), dtype=weights_N.dtype)
            owner.weigh(torch.cat([weights_N, extra]))
        return owner

    def _ids(self, X: Any) -> np.ndarray:
        """Ids of the rows: the column ``id``, or the index of a DataFrame of pandas.

        Raises:
            ValueError: neither; an index that counts rows would be taken for other people.
        """
        if self.id is not None:
            column = X[self.id]
            return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
        index = getattr(X, "index", None)
        if index is None or not hasattr(index, "to_numpy"):
            raise ValueError(
                "partners' rows are found by id: give X as a pandas DataFrame whose index is the "
                'id, or name its column with id="COLUMN"'
            )
        if index.dtype.kind in "iu" and index.name is None:
            raise ValueError(
                "the index of X is whole numbers without a name, which count rows and name "
                'nobody: say which column is the id, id="COLUMN"; where the index is the id, name '
                'it with X.rename_axis("ID")'
            )
        return np.asarray(index.to_numpy())

    # --- Rows ---------------------------------------------------------------------------------

    def _frame(self, X: Any, *, reset: bool) -> Any:
        """The features of X as a pandas DataFrame with text for names; the id is none of them.

        Raises:
            ValueError: rows that scikit-learn's estimators refuse, too, or no column of the id.
        """
        import pandas as pd

        if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
            array = self._array(X, reset=reset)
            return pd.DataFrame(array, columns=[f"x{each}" for each in range(array.shape[1])])
        frame = X if isinstance(X, pd.DataFrame) else X.to_pandas()
        if self.id is not None and self.id in frame.columns:
            frame = frame.drop(columns=self.id)
        elif self.id is not None and reset:
            names = [str(each) for each in frame.columns]
            raise ValueError(f"id = {self.id!r} is no column of X{nearest(self.id, names)}")
        validate_data(self, X=frame, reset=reset, skip_check_array=True)
        if not len(frame):
            raise ValueError(
                f"Found array with 0 sample(s) (shape={frame.shape}) while a minimum of 1 is "
                "required."
            )
        numbers = frame.select_dtypes("number").to_numpy(dtype=float, na_value=np.nan)
        if np.isinf(numbers).any():
            raise ValueError("Input X contains infinity or a value too large.")
        frame = frame.set_axis([str(each) for each in frame.columns], axis=1)
        if reset and not frame.columns.is_unique:
            raise ValueError("two columns of X have one name; rename one")
        return frame

    def _array(self, X: Any, *, reset: bool) -> np.ndarray:
        """X without names of columns, as numbers.

        Raises:
            ValueError: text, or an id that no column can be called by.
        """
        hint = (
            "give a DataFrame, whose columns have names; in a Pipeline that is "
            'set_output(transform="pandas") of the step before'
        )
        if self.id is not None and reset:
            raise ValueError(f"X has no column {self.id!r}, as it has no names of columns: {hint}")
        try:
            return np.asarray(validate_data(self, X=X, reset=reset, ensure_all_finite="allow-nan"))
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
            raise ValueError(f"X has text and no names of columns ({error}): {hint}") from None

    def _predictions(self, X: Any) -> tuple[Any, np.ndarray]:
        """X as it was given, and what the model predicts of it: probabilities, or values."""
        check_is_fitted(self)
        frame = self._frame(X, reset=False)
        with _value_errors():
            prediction = self.model_.predictions(frame, allow_unseen=self.allow_unseen)
        values = prediction.values if prediction.probabilities is None else prediction.probabilities
        return X, values.astype(np.float64) if prediction.labels else values

    # --- What it gives ------------------------------------------------------------------------

    def set_output(
        self, *, transform: Literal["default", "pandas", "polars"] | None = None
    ) -> _Solo:
        """Set what ``predict`` and ``predict_proba`` give.

        Args:
            transform: "default" (arrays), "pandas" (a Series and a DataFrame with X's index),
                "polars"; None: as before.
        """
        if transform not in ("default", "pandas", "polars", None):
            raise ValueError(f"set_output: transform is default, pandas or polars, got {transform}")
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def _given(self, X: Any, values: np.ndarray, columns: Any = None) -> Any:
        """The values as ``set_output`` says."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        if kind == "default":
            return values
        if columns is None and values.ndim > 1:
            columns = range(values.shape[1])
        if kind == "polars":
            import polars as pl

            if columns is None:
                return pl.Series("prediction", values)
            return pl.DataFrame({str(each): values[:, i] for i, each in enumerate(columns)})
        import pandas as pd

        index = getattr(X, "index", None)
        if columns is None:
            return pd.Series(values, index=index, name="prediction")
        return pd.DataFrame(values, index=index, columns=list(columns))


class SoloClassifier(ClassifierMixin, _Solo):  # type: ignore[misc]
    """A classifier that trains with partners (APFed-S) and predicts without them.

    Args:
        partners: a ``dovetail.Party`` or several, trained with in this process; or
            ``dovetail.listen``'s partners on other machines; None: the best local model.
        id: the column of X that names each sample, which is no feature; None: the DataFrame's
            index, which has a name if it is of whole numbers. Needed with partners, to train.
        name: what the partners call the label owner.
        unlabelled: a DataFrame of more own rows, without labels: partners help most with these.
        settings: the section ``[apfed]`` of a run file.
        learners: of the local model: "linear", "boosting", "network".
        allow_unseen: take categories unseen in training as missing, where else a row that has one
            is refused.
        random_state: seed of everything random.
        verbose: show progress.

    Attributes:
        classes_: the classes, sorted; of several labels a list, of each.
        n_features_in_, feature_names_in_: of the X that it was fitted on.
        model_: the ``Model`` that predicts; ``model_.save(folder)`` keeps it.
        run_: the ``Run``, where partners took part.
        helped_: whether what predicts learnt of them; else held-out rows chose the own model.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> SoloClassifier(learners=["linear"]).fit(X, y).predict(X[:2])
    array([0, 0])
    """

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, partners: Several = None
    ) -> SoloClassifier:
        """Train; ``partners`` take the place of those that the estimator has.

        Args:
            X: (N, F) own rows: a DataFrame, or numbers.
            y: (N,) classes; of several labels (N, L) of two classes each, NaN where a row lacks
                one.
            sample_weight: (N,) how much a row counts in the model that predicts and in what is
                chosen; the joint model, which teaches it, takes all labelled rows alike.
            partners: as of the class.

        Raises:
            ValueError: rows, labels or partners that do not fit.
        """
        if (several := _several(X, y)) is not None:
            self.classes_: Any
            self.classes_, codes_NL = _of_two(several)
            self._fit(X, codes_NL, sample_weight, partners, kind="multilabel")
            return self
        y = _labels(self, X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, y, ensure_non_negative=True)
            self.classes_, codes = np.unique(y, return_inverse=True)
            if len(np.unique(codes[weights > 0])) < 2 <= len(self.classes_):
                raise ValueError("Less than 2 classes have a row whose weight is not 0.")
        if len(self.classes_) < 2:
            self._frame(X, reset=True)
            raise ValueError(
                "Classifier can't train when only one class is present: got "
                f"{self.classes_.tolist()}"
            )
        self._fit(X, codes.astype(np.int64), sample_weight, partners, kind="classification")
        return self

    def predict_proba(self, X: Any) -> Any:
        """(N, C) probability of each of ``classes_``; asks nobody.

        Of several labels a list, of each (N, 2).
        """
        given, values = self._predictions(X)
        if isinstance(self.classes_, list):
            both = np.stack([1 - values, values], axis=2)
            each = zip(both.swapaxes(0, 1), self.classes_, strict=True)
            return [self._given(given, shares, classes) for shares, classes in each]
        probabilities = np.zeros((len(values), len(self.classes_)))
        probabilities[:, [int(code) for code in self.model_.classes]] = values
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return self._given(given, probabilities, self.classes_)

    def predict(self, X: Any) -> Any:
        """(N,) class of each row, or (N, L); asks nobody."""
        given, values = self._predictions(X)
        if isinstance(self.classes_, list):
            said = [
                classes[(share >= 0.5).astype(int)]
                for classes, share in zip(self.classes_, values.T, strict=True)
            ]
            return self._given(given, np.stack(said, axis=1))
        codes = np.array([int(code) for code in self.model_.classes])
        return self._given(given, self.classes_[codes[values.argmax(axis=1)]])


class SoloRegressor(RegressorMixin, _Solo):  # type: ignore[misc]
    """A regressor that trains with partners (APFed-S) and predicts without them.

    Arguments and attributes are those of ``SoloClassifier``, less ``classes_``.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> SoloRegressor(learners=["linear"]).fit(X, y).predict(X[:2]).round(-1)
    array([210.,  70.])
    """

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, partners: Several = None
    ) -> SoloRegressor:
        """Train; arguments as of ``SoloClassifier.fit``, with (N,) or (N, L) numbers as labels.

        Raises:
            ValueError: rows, labels or partners that do not fit.
        """
        if (several := _several(X, y)) is not None:
            numbers_NL = several.astype(np.float64)
            self._fit(X, numbers_NL, sample_weight, partners, kind="multitarget")
            return self
        y = _labels(self, X, y).astype(np.float64)
        self._fit(X, y, sample_weight, partners, kind="regression")
        return self

    def predict(self, X: Any) -> Any:
        """(N,) value of each row, or (N, L); asks nobody."""
        given, values = self._predictions(X)
        return self._given(given, values)


class SoloSurvival(_Solo):
    """Time to an event, trained with partners (APFed-S), predicted without them.

    By scikit-survival's contract: ``y`` is structured, of whether the event came and when a row was
    seen last, as ``sksurv.util.Surv`` makes it; a higher prediction is a higher risk. Arguments and
    attributes are those of ``SoloClassifier``, less ``classes_``.

    Attributes:
        unique_times_: (K,) ends of the intervals, at which survival is predicted.

    >>> from sksurv.datasets import load_whas500
    >>> X, y = load_whas500()
    >>> model = SoloSurvival(learners=["linear"]).fit(X.astype(float), y)
    >>> round(model.score(X.astype(float), y), 2)
    0.78
    """

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, partners: Several = None
    ) -> SoloSurvival:
        """Train; other arguments as of ``SoloClassifier.fit``.

        Args:
            X: (N, F) own rows: a DataFrame, or numbers.
            y: (N,) structured: first whether the event came, then the time.
            sample_weight, partners: as of ``SoloClassifier``.

        Raises:
            ValueError: rows, labels or partners that do not fit.
        """
        event_N, time_N = _events(y)
        check_consistent_length(X, event_N)
        signed_N = np.where(event_N, time_N, -time_N).astype(np.float32).astype(np.float64)
        self._fit(X, signed_N, sample_weight, partners, kind="survival")
        task = self.model_.task
        assert isinstance(task, Survival)
        self.unique_times_ = np.array(task.cuts)
        return self

    def predict(self, X: Any) -> Any:
        """(N,) risk: events expected by the ends of all intervals; asks nobody."""
        return self._given(X, self._named(X)["risk"])

    def predict_survival_function(self, X: Any, return_array: bool = False) -> np.ndarray:
        """Share without event until ``unique_times_``: (N,) ``StepFunction``, or (N, K) numbers."""
        named = self._named(X)
        shares_NK = np.stack([own for name, own in named.items() if name != "risk"], axis=1)
        if return_array:
            return shares_NK
        from sksurv.functions import StepFunction

        steps = [StepFunction(self.unique_times_, row, domain=(0, None)) for row in shares_NK]
        found = np.empty(len(steps), dtype=object)
        found[:] = steps
        return found

    def score(self, X: Any, y: Any) -> float:
        """Harrell's C."""
        event_N, time_N = _events(y)
        return c_index(time_N, event_N, np.asarray(self.predict(X)))

    def _named(self, X: Any) -> Mapping[str, np.ndarray]:
        check_is_fitted(self)
        frame = self._frame(X, reset=False)
        with _value_errors():
            return self.model_.predictions(frame, allow_unseen=self.allow_unseen).named


def _partners(given: Several) -> tuple[list[Party], Partners | None]:
    """Partners of this process, and those on other machines.

    Raises:
        ValueError: what is no partner.
    """
    if isinstance(given, Partners):
        return [], given
    here: list[Any] = [] if given is None else [given]
    if isinstance(given, (list, tuple)):
        here = list(given)
    for each in here:
        if not isinstance(each, Party):
            raise ValueError(
                "partners are dovetail.Party(name, df, id=...), one or a list, or what "
                f"dovetail.listen gives; got {type(each).__name__}"
            )
    return here, None


def _free(name: str, taken: Collection[str]) -> str:
    """A name that no column has yet."""
    while name in taken:
        name += "_"
    return name


#: In fewer rows a column says what the label says by chance, once in a while.
_LEAST_COPIES = 20


def _settings_of(settings: Any) -> dict[str, Any]:
    """The settings as a new dict.

    Raises:
        ValueError: they are none.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise ValueError(
            "settings is a dict of the keys of [apfed], such as {'distil': {'folds': 3}}; got "
            f"{type(settings).__name__}: give its arguments as such a dict"
        )
    return dict(settings or {})


def _warn_of_copies(frame: Any, labels_N: np.ndarray, kind: Kind) -> None:
    """Warn of columns that say the label of every row."""
    import pandas as pd

    if labels_N.ndim > 1 or len(labels_N) < _LEAST_COPIES:
        return
    for name in frame.columns:
        if kind == "classification":
            codes_N, values = pd.factorize(frame[name])
            same = len(values) < len(frame) and np.array_equal(codes_N, pd.factorize(labels_N)[0])
        else:
            same = frame[name].dtype.kind in "iuf" and np.array_equal(frame[name], labels_N)
        if same:
            warnings.warn(
                f"column {name!r} of X says the same as y in every row; leave it out of X, unless "
                "it is known when a row is predicted",
                stacklevel=4,
            )


def _events(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """(N,) whether the event came, and the times.

    Raises:
        ValueError: labels that are not structured so.
    """
    array = np.asarray(y)
    names = array.dtype.names or ()
    if len(names) != 2 or array.dtype[0].kind != "b":
        raise ValueError(
            "y is structured, of whether the event came (bool) and the time (float), as "
            f"sksurv.util.Surv.from_arrays makes it; got dtype {array.dtype}"
        )
    event_N, time_N = array[names[0]], array[names[1]].astype(np.float64)
    if not np.isfinite(time_N).all() or (time_N <= 0).any():
        raise ValueError("times of y are above 0 and have no NaN or infinity")
    return event_N, time_N


def _several(X: Any, y: Any) -> np.ndarray | None:
    """(N, L) of more than one label, as many rows as X; None: it is one.

    Raises:
        ValueError: an infinite one, or of another number.
    """
    array = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
    if array.ndim != 2 or array.shape[1] < 2:
        return None
    check_consistent_length(X, array)
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise ValueError("Input y contains infinity")
    return array


def _of_two(labels_NL: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The two classes of each label, and (N, L) which it is, NaN where missing.

    Raises:
        ValueError: a label of one class, or of more than two.
    """
    classes, codes = [], np.full(labels_NL.shape, np.nan)
    for number, column in enumerate(labels_NL.T):
        known = np.array([each is not None and each == each for each in column])
        two, which = np.unique(column[known], return_inverse=True)
        if len(two) != 2:
            raise ValueError(
                f"several labels have two classes each, and column {number} of y has {len(two)}; "
                "fit a label of more by itself"
            )
        classes.append(two)
        codes[known, number] = which
    return classes, codes


def _labels(estimator: _Solo, X: Any, y: Any) -> np.ndarray:
    """(N,) labels, of as many rows as X has.

    Raises:
        ValueError: none, of two dimensions, missing, infinite, or of another number.
    """
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y "
            "is None"
        )
    array = column_or_1d(y, warn=True)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("Input y contains NaN or infinity; rows without a label are `unlabelled`")
    if array.dtype.kind == "O" and any(each is None or each != each for each in array):
        raise ValueError("Input y contains NaN; rows without a label are `unlabelled`")
    check_consistent_length(X, array)
    return np.asarray(array)


@contextmanager
def _value_errors() -> Iterator[None]:
    """A user's mistake as scikit-learn raises it."""
    try:
        yield
    except DovetailError as error:
        raise ValueError(str(error)) from error
