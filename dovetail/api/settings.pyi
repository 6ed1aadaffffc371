"""Settings of methods, as editors and type checkers know them.

Written by ``make keys`` from the sections of run files and party files; the
pages of keys say what each means.
"""
# ruff: noqa: E501, I001
# fmt: off

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class PrivateSteps(TypedDict, total=False):
    clip: float
    noise: float
    epsilon: float | None
    delta: float


class Release(TypedDict, total=False):
    clip: float | None
    noise: float
    keep: float | None
    sign: bool
    epsilon: float | None
    delta: float


class Convolutional(TypedDict, total=False):
    channels: Sequence[int]
    kernels: Sequence[int]
    strides: Sequence[int]
    padding: int


class Once(TypedDict, total=False):
    width: int
    clip: float
    noise: float
    delta: float


class APFedDistil(TypedDict, total=False):
    widths: Sequence[int]
    bins: int
    learning_rate: float
    weight_decay: float
    linear_learning_rate: float
    linear_weight_decay: float
    release: Once | None
    exchange: Literal['gradients', 'released']
    teachers: Sequence[Literal['network', 'linear']]
    folds: int
    copies: int | None
    dropout: float
    batch_size: int | None
    max_steps: int
    patience: int
    timeout_s: float | None
    students: Sequence[Literal['linear', 'boosting', 'network']]
    label_share: float
    blend: bool
    gate: float


class APFedSealed(TypedDict, total=False):
    fill: bool
    rows: int
    timeout_s: float | None


class APFedSettings(TypedDict, total=False):
    optimizer: Literal['sgd', 'adam', 'adamw']
    learning_rate: float
    momentum: float
    weight_decay: float
    head_learning_rate: float | None
    head_weight_decay: float | None
    epochs: int
    batch_size: int
    steps_per_epoch: int | None
    timeout_s: float | None
    loss_weights: Literal['balanced'] | Mapping[str, float] | None
    label_epsilon: float | None
    label_stages: int
    spread: float | None
    validation: float
    patience: int | None
    balance: float | None
    private: PrivateSteps | None
    projection: int | None
    overlap: Literal['pairwise', 'common']
    codes: Release | None
    clip: float | None
    decorrelate: float | None
    gradients: Release | None
    trade_off: float | Mapping[str, float]
    encoder: Literal['table-3', 'table-4'] | Sequence[int] | Convolutional | Any
    head: Sequence[int]
    dropout: float
    distil: APFedDistil
    sealed: APFedSealed
    refit: bool


class APFedPartnerConfig(TypedDict, total=False):
    widths: Sequence[int]
    bins: int
    learning_rate: float
    weight_decay: float
    linear_learning_rate: float
    linear_weight_decay: float
    release: Once | None


class APFedPartySettings(TypedDict, total=False):
    optimizer: Literal['sgd', 'adam', 'adamw']
    learning_rate: float
    momentum: float
    weight_decay: float
    gradients: Release | None
    codes: Release | None
    release: Once | None
    exact: bool
    loss: Literal['contrastive', 'reconstruction', 'vicreg', 'clustering']
    temperature: float
    min_norm: float
    norm: Literal['l1', 'l2']
    encoder: Literal['table-3', 'table-4'] | Sequence[int] | Convolutional | Any
    distil: APFedPartnerConfig
    pictures: Literal['patches', 'flat']


class CostGoal(TypedDict, total=False):
    goal: Literal['cost']
    false_positive: float
    false_negative: float


class RecallGoal(TypedDict, total=False):
    goal: Literal['recall']
    precision: float


class F1Goal(TypedDict, total=False):
    goal: Literal['f1']


class ThresholdSettings(TypedDict, total=False):
    threshold: Literal['f1', 'cost'] | CostGoal | RecallGoal | F1Goal | None
    calibrate: Literal['temperature', 'isotonic', 'conformal'] | None


class CHFLSearch(TypedDict, total=False):
    learning_rate: Sequence[float]
    mu: Sequence[float]
    proximal: Sequence[float]
    rounds: int
    seed: int | None
    each: bool


class CHFLSettings(TypedDict, total=False):
    optimizer: Literal['sgd', 'adam']
    learning_rate: float
    momentum: float
    weight_decay: float
    widths: Sequence[int]
    mu: float
    rounds: int
    local_epochs: int
    batch_size: int
    method: Literal['chfl', 'common', 'local', 'simple']
    unique_weight_decay: float | None
    zero_start: bool
    gate: bool
    weights: Literal['even', 'samples']
    participation: float
    proximal: float
    secure: bool
    quorum: float | None
    private: PrivateSteps | None
    choose: Literal['mean', 'loss', 'each', 'last']
    patience: int | None
    max_categories: int
    loss_weights: Literal['balanced'] | Mapping[str, float] | None
    decide: ThresholdSettings | None
    timeout_s: float | None
    by_party: Mapping[str, Mapping[str, float]]
    encoder: str | Any | None
    search: CHFLSearch
    variants: Mapping[str, Mapping[str, Any]]


class CHFLPartySettings(TypedDict, total=False):
    common: Sequence[str]
    validation_share: float
    test_share: float
    label_scale: Sequence[float] | Mapping[str, Sequence[float]] | None
    secure: bool
    members: Sequence[str] | None
    quorum: float
    private: PrivateSteps | None
    encoder: str | Any | None


class HyFEMSmallCnn(TypedDict, total=False):
    kind: Literal['small-cnn']
    channels: Sequence[int]
    kernel: int
    pool: int
    centred: bool


class HyFEMResNet(TypedDict, total=False):
    kind: Literal['resnet-18', 'resnet-34']
    width: int
    stem: Literal['small', 'large']


class HyFEMSettings(TypedDict, total=False):
    cost: Literal['pfnm', 'distance']
    sigma: float
    sigma_0: float
    mu_0: float
    gamma: float
    sweeps: int
    width: int | Sequence[int] | Literal['widest', 'free']
    optimizer: Literal['sgd', 'adam', 'adamw']
    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: Literal['constant', 'cosine']
    rounds: int
    local_steps: int
    batch_size: int
    mu_1: float
    mu_2: float
    restart: bool
    private: PrivateSteps | None
    timeout_s: float | None
    average_last: int
    choose: Literal['last', 'loss', 'mean']
    patience: int | None
    scale_blocks: bool
    calibrate: bool
    start: Literal['server', 'own']
    weights: Literal['size', 'even']
    classifier: Literal['matched', 'own', 'frozen']
    match_rounds: int | None
    class_weights: bool
    held_classes: bool
    loss_weights: Literal['balanced'] | Mapping[str, float] | None
    decide: ThresholdSettings | None
    extractors: Mapping[str, Literal['small-cnn', 'resnet-18', 'resnet-34', 'unchanged'] | Sequence[int] | HyFEMSmallCnn | HyFEMResNet | Any]
    widths: Sequence[int] | Mapping[str | Literal['*'], Sequence[int]]
    classes: Sequence[str | int]
    label_scale: Sequence[float] | Mapping[str, Sequence[float]] | None
    labels: Sequence[str]
    task: Literal['survival', 'counts', 'amounts', 'quantiles'] | None
    proximal: float
    variants: Mapping[str, Mapping[str, Any]]


class HyFEMPartySettings(TypedDict, total=False):
    widths: Sequence[int]
    classes: Sequence[str | int]
    label_scale: Sequence[float] | Mapping[str, Sequence[float]] | None
    test_share: float
    private: PrivateSteps | None
    moments: bool


class FedOptimusStripCnn(TypedDict, total=False):
    kind: Literal['strip-cnn']
    channels: int
    kernel: int
    stride: Sequence[int]
    hidden: int


class FedOptimusResNet18(TypedDict, total=False):
    kind: Literal['resnet-18']
    width: int


class FedOptimusSelection(TypedDict, total=False):
    neighbours: int
    rows: int
    queries: int | None
    group_size: int
    groups: int
    share: float
    order: Literal['relevance', 'forward']
    secure: bool
    growth: float
    timeout_s: float | None
    every: int
    by: Literal['embeddings', 'columns']


class FedOptimusSettings(TypedDict, total=False):
    optimizer: Literal['sgd', 'adam', 'adamw']
    learning_rate: float
    momentum: float
    weight_decay: float
    beta: float
    server_learning_rate: float
    server_momentum: Literal['damped', 'undamped', 'corrected']
    reset: bool
    alpha: float
    server: Literal['average', 'fedavgm']
    slowmo: Literal['off', 'interpolate', 'initial', 'momentum']
    slow_momentum: float
    slow_learning_rate: float
    epochs: int
    batch_size: int
    sync_every: int
    iterate_average: int
    share: float
    embedding: int
    top: Sequence[int]
    rounds: int | None
    average_tops: bool
    skip: bool
    members: int
    smoothing: float | Literal['classes']
    patience: int | None
    loss_weights: Literal['balanced'] | Mapping[str, float] | None
    decide: ThresholdSettings | None
    timeout_s: float | None
    secure: bool
    quorum: float
    embeddings: Release | None
    gradients: Release | None
    variant: Literal['kstep', 'fedavg', 'slowmo', 'cs-kstep', 'cs-fedavg', 'cs-slowmo', 'paper']
    bottom: Literal['strip-cnn', 'resnet-18'] | Sequence[int] | FedOptimusStripCnn | FedOptimusResNet18 | Any | None
    selection: FedOptimusSelection | None
    variants: Mapping[str, Mapping[str, Any]]


class FedOptimusPartySettings(TypedDict, total=False):
    bottom: Literal['strip-cnn', 'resnet-18'] | Sequence[int] | FedOptimusStripCnn | FedOptimusResNet18 | Any | None
    classes: Sequence[str | int]
    label_scale: Sequence[float] | Mapping[str, Sequence[float]] | None
    test_share: float
    embeddings: Release | None
    gradients: Release | None
    secure: bool
    members: Sequence[str] | None
    quorum: float


class SurvivalSettings(TypedDict, total=False):
    group: str | None
    columns: Sequence[str]
    times: Sequence[float]
    least: int
    secure: bool
    private: PrivateSteps | None


class SurvivalPartySettings(TypedDict, total=False):
    min_events: int
    columns: Sequence[str]
    times: Sequence[float]
    secure: bool
    members: Sequence[str] | None
    private: PrivateSteps | None


class Encode(TypedDict, total=False):
    kind: Literal['text', 'picture', 'hash', 'frequency', 'number', 'date', 'category'] | None
    format: str | None
    decimal: Literal['.', ','] | None
    missing: Sequence[str]
    without: Sequence[str]
    lowercase: bool
    positive: str | int | None
    model: str | None
    arguments: Mapping[str, str | int | float | bool]
    size: int
    folder: str
    pixels: int


class Events(TypedDict, total=False):
    per: str
    time: str
    before: str | None
    windows: Sequence[int]
    most: int


class TeacherWeights(TypedDict, total=False):
    weights: str
    weights_licence: str
    use: Literal['commercial', 'non-commercial']


class PartyKeys(TypedDict, total=False):
    query: str | None
    folders: Sequence[str]
    images: str | None
    task: Literal['classification', 'regression', 'survival', 'counts', 'amounts', 'quantiles', 'multilabel', 'multitarget']
    columns: Sequence[str]
    blocks: Mapping[str, Sequence[str]] | None
    categorical: Sequence[str]
    max_categories: int
    encode: Mapping[str, Encode]
    id_as: Literal['text', 'lowercase', 'digits']
    match: Sequence[Sequence[str]]
    match_columns: Mapping[str, str]
    match_dates: Literal['day-first', 'month-first']
    match_region: str | None
    match_truth: str | None
    index_date: str | None
    events: Events | None
    compute: str | None
    tabicl: TeacherWeights | None
    revoked: str | None


class SimulateKeys(TypedDict, total=False):
    folders: Sequence[str]
    id: str | None
    task: Literal['classification', 'regression', 'survival', 'counts', 'amounts', 'quantiles', 'multilabel', 'multitarget']
    split_column: str | None
    split_seed: int
    rows: int | None
    labels: int | None
    categorical: Sequence[str]
    max_categories: int


class ListenKeys(TypedDict, total=False):
    precision: Literal['float32', 'float16', 'bfloat16', 'int8']
    name: str | None
    wait_s: float | None
    grace_s: float | None
    max_message_mb: float
    timeout_s: float
    revoked: str | None


class PartySettings(PartyKeys, total=False):
    """Keys of [party], and a party's own settings of each method."""

    apfed: APFedPartySettings
    chfl: CHFLPartySettings
    hyfem: HyFEMPartySettings
    fedoptimus: FedOptimusPartySettings
    survival: SurvivalPartySettings
