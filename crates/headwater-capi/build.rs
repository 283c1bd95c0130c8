//! Gives the shared library its run-time name. Whoever links with it then looks for the major version that it was built
//! with; before 1.0 every minor version is one of its own.

fn main() {
    let part = |name: &str| std::env::var(name).unwrap_or_else(|_| "0".to_owned());
    let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libheadwater.so.{major}.{minor}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
