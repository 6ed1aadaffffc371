"""Which party holds which block of which sample, and how raw data becomes blocks."""

from dovetail.data.agreed import (
    CategorySummary,
    FixedSummary,
    NumberSummary,
    Summary,
    agree,
    common_first,
    fit_rest,
    summarise,
)
from dovetail.data.blocks import Blocks, blocks
from dovetail.data.by_column import ByColumn, CommonUnique, by_column, common_unique
from dovetail.data.databases import read_database
from dovetail.data.datasets import Dataset, Seed, load, split, subset
from dovetail.data.fitted import far_in
from dovetail.data.images import ImageInput, ImageRegion, quadrants, read_images
from dovetail.data.kinds import Column, Reading
from dovetail.data.minibatches import Minibatches
from dovetail.data.partitions import Owners, Partitioned, columns, owners, strips
from dovetail.data.party import UNLABELLED, UNSEEN, Alignment, Federation, PartyData
from dovetail.data.partytables import PartyTable, keep_labels, read_party_table, split_sites
from dovetail.data.preprocessing import Input, TableEncoder, input_from_json, unusable_rows
from dovetail.data.shared import SharedRows
from dovetail.data.tables import Table, read_table, stacked, table_from_arrays, write_table
from dovetail.data.task import (
    Amounts,
    Classification,
    Counts,
    MultiLabel,
    MultiTarget,
    Quantiles,
    Regression,
    Survival,
    Task,
    check_classes,
    encode_labels,
    fit_task,
    in_order,
    shared_json,
    spelled_alike,
    task_from_json,
)
from dovetail.settings.labels import Kind
from dovetail.settings.sources import is_database_url, is_query
