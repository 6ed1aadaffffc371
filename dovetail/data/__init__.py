"""Which party holds which block of which sample, and how raw data becomes blocks."""

from dovetail.data.databases import is_database_url, read_database
from dovetail.data.datasets import BUILT_IN, Dataset, load, split, subset
from dovetail.data.federation import Alignment, Coverage, Federation
from dovetail.data.images import ImageInput, ImagePart, ImageSet, read_images
from dovetail.data.inputs import Input, input_from_json
from dovetail.data.minibatches import Minibatches
from dovetail.data.partitions import Partitioned, columns, strips
from dovetail.data.party import UNLABELLED, PartyData
from dovetail.data.partytables import PartyTable, read_party_table
from dovetail.data.preprocessing import TableEncoder
from dovetail.data.shared import SharedRows
from dovetail.data.tables import Column, Table, is_query, read_table, table_from_arrays, write_table
from dovetail.data.task import (
    Classification,
    Regression,
    Task,
    encode_labels,
    fit_task,
    task_from_json,
)

__all__ = [
    "BUILT_IN",
    "UNLABELLED",
    "Alignment",
    "Classification",
    "Column",
    "Coverage",
    "Dataset",
    "Federation",
    "ImageInput",
    "ImagePart",
    "ImageSet",
    "Input",
    "Minibatches",
    "Partitioned",
    "PartyData",
    "PartyTable",
    "Regression",
    "SharedRows",
    "Table",
    "TableEncoder",
    "Task",
    "columns",
    "encode_labels",
    "fit_task",
    "input_from_json",
    "is_database_url",
    "is_query",
    "load",
    "read_database",
    "read_images",
    "read_party_table",
    "read_table",
    "split",
    "strips",
    "subset",
    "table_from_arrays",
    "task_from_json",
    "write_table",
]
