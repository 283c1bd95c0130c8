#!/bin/sh
# Installs the C library: headers, the shared and the static library, and the pkg-config file.
#
#   cargo build --release -p headwater-capi && crates/headwater-capi/install.sh PREFIX [FOLDER]
#
# FOLDER is where cargo put the libraries: target/release unless told otherwise. DESTDIR is put before PREFIX, for packagers.
# Cargo calls the libraries `headwater_capi`, because the Rust crate has the other name; here they get the name that C programs
# link with, and the shared one the usual chain of links.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: $0 PREFIX [FOLDER WITH libheadwater_capi.so AND .a]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
prefix=$1
built=${2:-${CARGO_TARGET_DIR:-$here/../../target}/release}
version=$(sed -n '/^\[workspace\.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
[ -n "$version" ] || { echo "$0: no version in Cargo.toml" >&2; exit 1; }
for file in libheadwater_capi.so libheadwater_capi.a; do
    [ -f "$built/$file" ] || { echo "$0: $built/$file is missing: cargo build --release -p headwater-capi" >&2; exit 1; }
done

root=${DESTDIR:-}$prefix
mkdir -p "$root/lib/pkgconfig" "$root/include"
cp "$here/include/headwater.h" "$here/include/headwater.hpp" "$root/include/"
cp "$built/libheadwater_capi.a" "$root/lib/libheadwater.a"
# Made beside and moved into place: a program that runs with the old library keeps it.
cp "$built/libheadwater_capi.so" "$root/lib/libheadwater.so.$version.new"
mv -f "$root/lib/libheadwater.so.$version.new" "$root/lib/libheadwater.so.$version"
# The run-time name is major.minor (build.rs); the linker's name has no version.
ln -sf "libheadwater.so.$version" "$root/lib/libheadwater.so.${version%.*}"
ln -sf "libheadwater.so.${version%.*}" "$root/lib/libheadwater.so"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/headwater.pc.in" >"$root/lib/pkgconfig/headwater.pc"
echo "headwater $version is in $root"
