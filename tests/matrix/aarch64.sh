#!/bin/sh
# ``make aarch64``: the wheel for Linux on aarch64 is built here, and the tests of records run in it, under qemu-user.
#
# The emulated Python and its libraries are Debian's, unpacked into build/aarch64 and not installed. Needs apt-get, as root.
set -e
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
home=$PWD/build/aarch64
rm -rf "$home"
mkdir -p "$home/debs" "$home/sysroot" "$home/qemu"
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "make aarch64 needs apt-get as root, for Debian's qemu-user-static and its Python for arm64" >&2
    exit 1
fi
foreign=$(dpkg --print-foreign-architectures)
dpkg --add-architecture arm64
trap 'case " $foreign " in *arm64*) ;; *) dpkg --remove-architecture arm64 ;; esac' EXIT
apt-get update -qq
(
    cd "$home/debs"
    apt-get download -qq -o APT::Sandbox::User=root qemu-user-static
    dpkg -x qemu-user-static*.deb ../qemu
    for package in libc6 libpython3.11-minimal libpython3.11-stdlib python3.11-minimal libexpat1 zlib1g libffi8 libssl3 \
        libgcc-s1 libstdc++6 libbz2-1.0 liblzma5 libcrypt1 libuuid1 libsqlite3-0; do
        apt-get download -qq -o APT::Sandbox::User=root "$package:arm64"
    done
    for each in *arm64.deb; do dpkg -x "$each" ../sysroot; done
)
RAYLOG_TARGET=aarch64 "$python" -m uv build --quiet --wheel --out-dir "$home" .
"$python" -m uv pip install --quiet --python-platform aarch64-manylinux_2_28 --python-version 3.11 --target "$home/site" \
    "$home"/raylog-*aarch64.whl pyarrow pytest pytest-timeout hypothesis kafka-python numpy
emulated() {
    PYTHONPATH=$home/site PYTHONDONTWRITEBYTECODE=1 \
        "$home/qemu/usr/bin/qemu-aarch64-static" -L "$home/sysroot" "$home/sysroot/usr/bin/python3.11" "$@"
}
cp -r tests/records tests/support tests/conftest.py "$home"
cd "$home"
emulated -c 'import platform; from raylog.records import kernel; print(platform.machine(), kernel.description())'
# Left out: tests that compile the kernel themselves, and one that starts another interpreter, for which the machine has no emulator.
emulated -m pytest -q -p no:cacheprovider -k "not another_source and not does_not_compile and not turned_off" records
