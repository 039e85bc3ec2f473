"""A path in; what lies in that HF-layout folder out: config, tensor headers, files and their fingerprint.

Nothing that is read is executed, and no tensor's data is loaded here. No torch in here.
"""

from attnscope.folder.checkpoint import Folder, hash_weights, open_folder, open_weights
from attnscope.folder.files import open_regular, parse_json, read_file, read_json
from attnscope.folder.headers import DTYPE_BYTES, Header, Stamp, TensorInfo, read_header

__all__ = [
    "DTYPE_BYTES",
    "Folder",
    "Header",
    "Stamp",
    "TensorInfo",
    "hash_weights",
    "open_folder",
    "open_regular",
    "open_weights",
    "parse_json",
    "read_file",
    "read_header",
    "read_json",
]
