//! Writes any trace as the pickle that PyTorch's memory viewer opens:
//! `cargo run --release -p headwater-trace --example to_snapshot -- TRACE OUT.pickle`.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use headwater_trace::snapshot::Snapshot;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(input), Some(output)) = (paths.next(), paths.next()) else {
        return Err("two files are needed: TRACE and OUT.pickle".into());
    };
    let (snapshot, left_out) = Snapshot::from_trace(&headwater_trace::open(&input)?)?;
    snapshot.write(BufWriter::new(File::create(&output)?))?;
    println!("{}: {} segments; left out: {left_out:?}", output.display(), snapshot.segments.len());
    Ok(())
}
