"""CRC-32 at the speed of memory: that of zlib takes two fifths of the time of a dump of whole matrices."""

from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
