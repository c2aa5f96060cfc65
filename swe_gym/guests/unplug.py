"""Takes down every network interface but the loopback. Runs as root, in a container before the runner's."""

import fcntl
import socket
import struct

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
REQUEST = struct.Struct("16sH22x")


def unplug() -> None:
    """Take all interfaces down. Raises OSError if the kernel refuses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if name == "lo":
                continue
            asked = fcntl.ioctl(probe, SIOCGIFFLAGS, REQUEST.pack(name.encode(), 0))
            flags = REQUEST.unpack(asked)[1]
            fcntl.ioctl(probe, SIOCSIFFLAGS, REQUEST.pack(name.encode(), flags & ~IFF_UP))
