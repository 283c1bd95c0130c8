//! C and C++ programs, compiled by the system's compilers and run on the simulated device: the examples of the repository and a
//! program for the rest, each against the shared and the static library as `install.sh` installs them.
//!
//! Needs `cc`, `c++` and `pkg-config`. Where one is missing the test fails and says so: what was not compiled was not tested.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    let shown = format!("{command:?}");
    let output = command.output();
    let output =
        output.unwrap_or_else(|error| panic!("{shown} cannot be run ({error}): CI needs it installed"));
    assert!(
        output.status.success(),
        "{shown}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Where cargo put the libraries: beside the test executable, or one folder up.
fn built() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let mut folders = executable.ancestors().skip(1).take(2);
    let found = folders.find(|folder| folder.join("libheadwater_capi.so").is_file());
    found.unwrap_or_else(|| panic!("no libheadwater_capi.so near {}", executable.display())).to_owned()
}

/// Everything installed once, by the script that users run.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let _ = std::fs::remove_dir_all(&prefix);
        run(Command::new(package().join("install.sh")).arg(&prefix).arg(built()));
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let output = run(Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig"))
        .args(arguments)
        .arg("headwater"));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[derive(Clone, Copy, Debug)]
enum Link {
    Shared,
    Static,
}

/// Compiles `source` without a warning, links it as told, runs it with `arguments` and returns what it printed.
fn compiled_and_run(source: &str, link: Link, arguments: &[&str]) -> String {
    let source = package().join(source);
    let name = source.file_stem().unwrap().to_str().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{link:?}"));
    let is_cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let (compiler, standard) = if is_cpp { ("c++", "-std=c++11") } else { ("cc", "-std=c99") };
    let mut command = Command::new(compiler);
    command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"]);
    command.arg(&program).arg(&source).args(pkg_config(&["--cflags"]));
    match link {
        Link::Shared => command.args(pkg_config(&["--libs"])),
        Link::Static => {
            // The same flags with the archive in the shared library's place: the linker would take the latter.
            let flags = pkg_config(&["--libs", "--static"]);
            let archive = installed().join("lib/libheadwater.a").display().to_string();
            command.args(
                flags.into_iter().map(|flag| if flag == "-lheadwater" { archive.clone() } else { flag }),
            )
        }
    };
    run(&mut command);
    let mut command = Command::new(&program);
    if matches!(link, Link::Shared) {
        command.env("LD_LIBRARY_PATH", installed().join("lib"));
    } else {
        command.env_remove("LD_LIBRARY_PATH");
    }
    String::from_utf8(run(command.args(arguments)).stdout).unwrap()
}

#[test]
fn the_c_example_runs_with_both_libraries() {
    for link in [Link::Shared, Link::Static] {
        let printed = compiled_and_run("../../examples/c/two_streams.c", link, &["sim"]);
        assert!(printed.contains("199 requests from the cache, 1 from the driver"), "{link:?}: {printed}");
        assert!(printed.contains("noticed 0 mistakes"), "{link:?}: {printed}");
    }
}

#[test]
fn the_cpp_example_runs_with_both_libraries() {
    for link in [Link::Shared, Link::Static] {
        let printed = compiled_and_run("../../examples/cpp/buffers.cpp", link, &["sim"]);
        assert!(printed.contains("8 MiB, and then: out of memory"), "{link:?}: {printed}");
    }
}

#[test]
fn the_rest_of_the_interface_keeps_its_contract_in_c() {
    for link in [Link::Shared, Link::Static] {
        let printed = compiled_and_run("tests/c/contract.c", link, &[]);
        assert_eq!(printed.trim(), "all expectations met", "{link:?}");
    }
}

#[test]
fn the_shared_library_exports_its_functions_and_nothing_else() {
    let library = installed().join("lib/libheadwater.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).stdout;
    let symbols = String::from_utf8(symbols).unwrap();
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert!(names.iter().filter(|name| name.starts_with("hw_")).count() > 100, "{names:?}");
    for name in names {
        let is_ours = name.starts_with("hw_") || name.starts_with("headwater_");
        assert!(is_ours, "{name} is exported, and would clash with somebody else's");
    }
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library)).stdout;
    let dynamic = String::from_utf8(dynamic).unwrap();
    let name = format!("[libheadwater.so.{}]", env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0);
    assert!(dynamic.contains(&name), "{name} is not the run-time name: {dynamic}");
    assert!(!dynamic.contains("libcuda"), "the library must load where there is no CUDA: {dynamic}");
}

#[test]
fn the_header_compiles_alone_as_c_and_cpp() {
    let include = package().join("include");
    for (compiler, language, standard, header) in [
        ("cc", "c", "-std=c99", "headwater.h"),
        ("cc", "c", "-std=c11", "headwater.h"),
        ("c++", "c++", "-std=c++11", "headwater.h"),
        ("c++", "c++", "-std=c++20", "headwater.hpp"),
    ] {
        run(Command::new(compiler)
            .args(["-x", language, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .arg(include.join(header)));
    }
}
