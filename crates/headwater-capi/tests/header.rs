//! The header is what the code says. `HEADWATER_UPDATE_HEADER=1 cargo test -p headwater-capi --test header` writes it anew.
#![allow(clippy::unwrap_used)] // what fails here fails the test

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// In the order in which the header shows them.
const SOURCES: [&str; 19] = [
    "status",
    "arguments",
    "device",
    "streams",
    "copies",
    "allocator",
    "memory",
    "oom",
    "log",
    "sleep",
    "graph_pool",
    "pools",
    "captures",
    "statistics",
    "snapshot",
    "recording",
    "tiers",
    "reservations",
    "spill",
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header_path() -> PathBuf {
    package().join("include/headwater.h")
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(package().join("src").join(format!("{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn the_header_is_what_the_code_says() {
    let generated = generated();
    if std::env::var_os("HEADWATER_UPDATE_HEADER").is_some() {
        std::fs::write(header_path(), &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(header_path()).unwrap_or_default();
    let differs = generated.lines().zip(checked_in.lines()).position(|(new, old)| new != old);
    assert!(
        generated == checked_in,
        "include/headwater.h is stale (first difference in line {:?}): \
         run HEADWATER_UPDATE_HEADER=1 cargo test -p headwater-capi --test header",
        differs.map(|line| line + 1)
    );
}

/// A file that was left out of `SOURCES` would leave its functions out of the header without a word.
#[test]
fn every_exported_function_is_in_the_header() {
    let header = generated();
    let declared: BTreeSet<&str> = header
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("hw_"))
        .collect();
    let mut exported = 0;
    for entry in std::fs::read_dir(package().join("src")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        for line in source.lines() {
            let Some((_, rest)) = line.split_once("extern \"C\" fn hw_") else { continue };
            if !line.starts_with("pub ") {
                continue;
            }
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let name = format!("hw_{name}");
            assert!(declared.contains(name.as_str()), "{name} of {} is not in the header", path.display());
            exported += 1;
        }
    }
    assert!(
        exported > 100,
        "only {exported} exported functions were found: the test looks in the wrong place"
    );
}
