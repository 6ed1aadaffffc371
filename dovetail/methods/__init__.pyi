"""What ``dovetail.methods`` offers; each name is imported when it is first used."""

from dovetail.federated import Driver as Driver
from dovetail.federated import Party as Party
from dovetail.federated import Round as Round
from dovetail.federated import handles as handles
from dovetail.methods.local_data import LocalData as LocalData
from dovetail.methods.local_data import pooled as pooled
from dovetail.methods.method import Method as Method
from dovetail.methods.table import METHODS as METHODS
from dovetail.methods.table import check as check
from dovetail.methods.table import coordinated as coordinated
from dovetail.methods.table import did_you_mean_variant as did_you_mean_variant
from dovetail.methods.table import every as every
from dovetail.methods.table import method_of as method_of
from dovetail.methods.table import record_of as record_of
from dovetail.methods.table import records as records
from dovetail.methods.table import title as title
from dovetail.methods.table import variants as variants
